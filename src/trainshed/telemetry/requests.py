"""Logs requests: gives each an id, which its answer has too, and writes one line when it was answered."""

import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from trainshed.telemetry.lines import request_id
from trainshed.telemetry.meters import Meters

Scope = MutableMapping[str, Any]
Send = Callable[[Any], Awaitable[None]]

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


class Logged:
    """A context in which an HTTP request has its id and is answered through the `Send` that it returns. At
    its end it counts the request, if its scope names the method (`METHOD`), and logs it at level info. A
    class, since a generator would cost each request three times as much."""

    __slots__ = ("_began", "_identity", "_meters", "_scope", "_send", "_status", "_token")

    def __init__(self, scope: Scope, send: Send, meters: Meters) -> None:
        self._scope, self._send, self._meters = scope, send, meters
        given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        self._identity = identified(given.decode("latin-1"))
        self._status = 0
        self._began = time.perf_counter()

    async def __aenter__(self) -> Send:
        self._token = request_id.set(self._identity)
        return self._answered

    async def _answered(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            others = [pair for pair in message.get("headers", ()) if pair[0] != _HEADER]
            message = {**message, "headers": [*others, (_HEADER, self._identity.encode())]}
        await self._send(message)

    async def __aexit__(self, *error: object) -> None:
        scope, status, meters = self._scope, self._status, self._meters
        if status and (method := scope.get(METHOD)):
            seconds = time.perf_counter() - self._began
            meters.requests.observe(seconds, "rest", method, str(status))
        log_request(scope["method"], scope["path"], str(status or "-"), self._began)
        request_id.reset(self._token)


def identified(given: str) -> str:
    """Return a request's id: the one that its sender gave it, if it is well-formed, else a new one."""
    if given and _WELL_FORMED.fullmatch(given):
        return given
    return f"{_numbers.getrandbits(64):016x}"


def log_request(method: str, path: str, status: str, began: float) -> None:
    """Log one line for an answered request. `began`: by `time.perf_counter`."""
    if not _log.isEnabledFor(logging.INFO):
        return
    milliseconds = (time.perf_counter() - began) * 1e3
    _log.info("%s %s %s %.1f ms", method, _KEY.sub(r"\1KEY", path), status, milliseconds)
