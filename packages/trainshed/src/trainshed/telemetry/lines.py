"""Log lines with fields (job, attempt, replica, request), as key=value text or as JSON.

Code logs with `logging` as usual. What concerns a job is logged through `about`, which begins the message
with its subject and keeps job, attempt and replica as fields. The id of a request is a context variable, so
every line that is logged while it is handled has it.
"""

import json
import logging
import re
import time
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, Final, Literal

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

request_id: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)
"""The request that is being handled; None outside of one."""
_FIELDS: Final = ("job", "attempt", "replica", "request")
"""Fields of a record, in the order in which they are written."""
_PLAIN: Final = re.compile(r"[\w.:/@+-]+")
"""A value that needs no quotes."""


class _About(logging.LoggerAdapter[logging.Logger]):
    """A log whose messages begin with one subject."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        fields = self.extra or {}
        subject = " ".join(f"{key} {value}" for key, value in fields.items())
        # The subject is no format string: a percent sign in a name would need an argument.
        return f"{subject.replace('%', '%%')}: {msg}", {**kwargs, "extra": fields}


def about(
    log: logging.Logger, job: int, *, attempt: int | None = None, replica: object = None
) -> "logging.LoggerAdapter[logging.Logger]":
    """Return the log for what concerns a job: its messages begin with `job 12 replica worker-1: `."""
    fields: dict[str, object] = {"job": int(job)}
    if attempt is not None:
        fields["attempt"] = attempt
    if replica is not None:
        fields["replica"] = str(replica)
    return _About(log, fields)


OURS: Final = ("trainshed", "trainshed_cluster", "trainshed_console", "trainshed_tracking")
"""The distributions whose lines are the service's own."""


def configure(kind: LogFormat, level: LogLevel, printable: Callable[[str], str]) -> None:
    """Write the log of this process to standard error. `printable`: removes from a line what a terminal would
    take for commands."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if kind == "json" else TextLines(printable))
    least = logging.getLevelNamesMapping()[level.upper()]
    # An operator of this service does not need what libraries log below the level of a warning.
    logging.basicConfig(level=max(least, logging.WARNING), handlers=[handler])
    for distribution in OURS:
        logging.getLogger(distribution).setLevel(least)


class TextLines(logging.Formatter):
    """`time=… level=… logger=… job=… message="…"`; a traceback follows as lines of its own."""

    def __init__(self, printable: Callable[[str], str]) -> None:
        super().__init__()
        self._printable = printable

    def format(self, record: logging.LogRecord) -> str:
        line = " ".join(f"{key}={_quoted(str(value))}" for key, value in _fields(record).items())
        if trace := _traceback(self, record):
            line += f"\n{trace}"
        # Lines contain names that strangers chose, and go to the operator's terminal.
        return self._printable(line)


class JsonLines(logging.Formatter):
    """One JSON object a line, the traceback among its fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        if trace := _traceback(self, record):
            fields["traceback"] = trace
        return json.dumps(fields)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    known = {key: getattr(record, key, None) for key in _FIELDS}
    known["request"] = known["request"] or request_id.get()
    return {
        "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03}Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        **{key: value for key, value in known.items() if value is not None},
        "message": record.getMessage(),
    }


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    trace = formatter.formatException(record.exc_info) if record.exc_info else ""
    return "\n".join(part for part in (trace, record.stack_info) if part)


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
