"""Log lines with fields (job, attempt, replica, request), as key=value text or as JSON.

Code logs with `logging` as usual. What concerns a job is logged through `about`, which begins the message
with its subject and keeps job, attempt and replica as fields. The id of a request is a context variable, so
every line that is logged while it is handled has it.
"""

import json
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, Final, Literal

from trainshed.telemetry.meters import Meters

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


Scope = MutableMapping[str, Any]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Any, Send], Awaitable[None]]

HEADER: Final = "x-request-id"
METHOD: Final = "trainshed.method"
"""Key in a scope: the full name of the method that answers, unless it is a stream."""
_HEADER: Final = HEADER.encode()
_WELL_FORMED: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY: Final = re.compile(r"(?<=/with/)[^/]+|(?<=/tensorboard/)([0-9-]+/)[^/]+")
"""A storage address with a key in it (`buckets.callers`), or that of a view of TensorBoard with its mark:
whoever reads it may use the buckets, or look."""
_numbers: Final = random.Random()
"""Ids are no secrets: they only tell requests apart, and should not cost a system call each."""
_log = logging.getLogger("trainshed.requests")


async def logged(
    application: Application, scope: Scope, receive: Any, send: Send, meters: Meters
) -> None:
    """Have an HTTP request answered that has its id meanwhile. At its end count it, if its scope names the
    method (`METHOD`), and log it at level info."""
    sent = next((value for name, value in scope["headers"] if name == _HEADER), b"")
    identity, status, began = identified(sent.decode("latin-1")), 0, time.perf_counter()

    async def answered(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            others = [pair for pair in message.get("headers", ()) if pair[0] != _HEADER]
            message = {**message, "headers": [*others, (_HEADER, identity.encode())]}
        await send(message)

    token = request_id.set(identity)
    try:
        await application(scope, receive, answered)
    finally:
        if status and (method := scope.get(METHOD)):
            meters.requests.observe(time.perf_counter() - began, "rest", method, str(status))
        log_request(scope["method"], scope["path"], str(status or "-"), began)
        request_id.reset(token)


def identified(identity: str) -> str:
    """Return a request's id: the one that its sender gave it, if it is well-formed, else a new one."""
    if identity and _WELL_FORMED.fullmatch(identity):
        return identity
    return f"{_numbers.getrandbits(64):016x}"


def log_request(method: str, path: str, status: str, began: float) -> None:
    """Log one line for an answered request. `began`: by `time.perf_counter`."""
    if not _log.isEnabledFor(logging.INFO):
        return
    milliseconds = (time.perf_counter() - began) * 1e3
    _log.info("%s %s %s %.1f ms", method, _KEY.sub(r"\1KEY", path), status, milliseconds)
