"""Log lines with fields (job, attempt, replica, request), as key=value text or as JSON.

Code uses `logging` as usual. For messages about a job, it uses `about`, which starts each message with the
name of the job and sets the fields job, attempt and replica. The ID of a request is in a context variable, so
that every log line about the request contains it.
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
"""The ID of the current request; None = no request is being processed."""
_FIELDS: Final = ("job", "attempt", "replica", "request")
"""Fields of a log record, in output order."""
_PLAIN: Final = re.compile(r"[\w.:/@+-]+")
"""Matches values that need no quotes."""


class _About(logging.LoggerAdapter[logging.Logger]):
    """A log whose messages all start with the name of the same subject."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        fields = self.extra or {}
        subject = " ".join(f"{key} {value}" for key, value in fields.items())
        # Escape percent signs, because the message is a format string. A percent sign in the subject would
        # otherwise require an argument.
        return f"{subject.replace('%', '%%')}: {msg}", {**kwargs, "extra": fields}


def about(
    log: logging.Logger, job: int, *, attempt: int | None = None, replica: object = None
) -> "logging.LoggerAdapter[logging.Logger]":
    """Return a log for messages about a job. The messages start with `job 12 replica worker-1: `."""
    fields: dict[str, object] = {"job": int(job)}
    if attempt is not None:
        fields["attempt"] = attempt
    if replica is not None:
        fields["replica"] = str(replica)
    return _About(log, fields)


OWN_DISTRIBUTIONS: Final = (
    "trainshed",
    "trainshed_cluster",
    "trainshed_console",
    "trainshed_pipelines",
    "trainshed_tracking",
)
"""Names of the service's own distribution packages."""


def configure(kind: LogFormat, level: LogLevel, printable: Callable[[str], str]) -> None:
    """Configure the log of this process, which is written to standard error. `printable`: removes terminal
    control sequences from a line (log injection)."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if kind == "json" else TextLines(printable))
    minimum = logging.getLevelNamesMapping()[level.upper()]
    # Show messages of libraries only from the level WARNING on, because the operator does not need
    # lower levels.
    logging.basicConfig(level=max(minimum, logging.WARNING), handlers=[handler])
    for distribution in OWN_DISTRIBUTIONS:
        logging.getLogger(distribution).setLevel(minimum)


class TextLines(logging.Formatter):
    """`time=… level=… logger=… job=… message="…"`, followed by the lines of a traceback."""

    def __init__(self, printable: Callable[[str], str]) -> None:
        super().__init__()
        self._printable = printable

    def format(self, record: logging.LogRecord) -> str:
        line = " ".join(f"{key}={_quote(str(value))}" for key, value in _fields(record).items())
        if trace := _traceback(self, record):
            line += f"\n{trace}"
        # Remove control sequences, because lines contain untrusted names and the operator may read them in a
        # terminal.
        return self._printable(line)


class JsonLines(logging.Formatter):
    """One JSON object per line, with the traceback as a field."""

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


def _quote(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
