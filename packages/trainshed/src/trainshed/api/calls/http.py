"""What the API's surfaces share over HTTP: ids of requests and their lines in the log, size limits, JSON
answers, errors in the public form, and pages that open by a link."""

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from trainshed.api.calls.errors import Refusal, refusal
from trainshed.httpd.messages import (
    CHALLENGE,
    JSON,
    Application,
    Message,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    sized,
)
from trainshed.telemetry.lines import request_id
from trainshed.telemetry.meters import Meters
from trainshed.wire.json import decode_text
from trainshed.wire.status import StatusCode, Violation, WireError, error_body

MAX_BODY: Final = 10 * 1024 * 1024
"""Most bytes of a request that makes something; the public services have the same limit."""
SMALL_BODY: Final = 64 * 1024
"""Most bytes of a request that makes nothing."""
_MAKING: Final = (
    *("Add", "BatchCreate", "BatchImport", "Complete", "Create", "Import"),
    *("Set", "Update", "Upload", "Write"),
)

NDJSON: Final = b"application/x-ndjson"
T = TypeVar("T")
LARGE: Final = 16 << 10
"""Bytes of a request from which on it is read in a thread."""
_reader: Final = ThreadPoolExecutor(1, "large-requests")
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
    application: Application, scope: Scope, receive: Receive, send: Send, meters: Meters
) -> None:
    """Have an HTTP request answered that has its id meanwhile. At its end count it, if its scope names the
    method (`METHOD`), and log it at level info."""
    sent = next((value for name, value in scope["headers"] if name == _HEADER), b"")
    identity, status, began = identified(sent.decode("latin-1")), 0, time.perf_counter()

    async def answered(message: Message) -> None:
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


def most_of(method: str) -> int:
    """Return the most bytes that a request of a public method may have, by its name: many if it makes or
    writes something, few otherwise."""
    return MAX_BODY if method.startswith(_MAKING) else SMALL_BODY


def json_answer(body: bytes) -> Response:
    return sized(body, JSON)


def refusal_answer(refused: Refusal) -> Response:
    """Return an answer in the public error form."""
    more = (CHALLENGE,) if refused.code is StatusCode.UNAUTHENTICATED else ()
    body = error_body(refused.code, refused.message, refused.violations)
    return sized(body, JSON, refused.code.http, more)


def error_answer(request: Request, error: Exception) -> Response:
    """Return what a caller of `request.api` is told of `error`. Logs a fault of the service itself."""
    return refusal_answer(refusal(error, request.api, f"{request.method} {request.raw_path}"))


def no_such_method(request: Request, where: str = "") -> Refusal:
    """Return the refusal of a request that nothing serves."""
    text = f"There is no method {request.method} {request.raw_path}{where}."
    return Refusal(StatusCode.NOT_FOUND, text)


async def sent_object(request: Request, most: int) -> dict[str, Any]:
    """Return the JSON object of a request of at most so many bytes; {} for an empty body. Raises WireError,
    BodyTooLarge, BodyNotRead."""
    text = await request.decoded_body(most)
    value = await read_aside(len(text), lambda: decode_text(text))
    if not isinstance(value, dict):
        wrong = "Invalid JSON payload received. The body must be an object: {...}."
        raise WireError((Violation("", wrong),))
    return cast("dict[str, Any]", value)


async def read_aside(size: int, work: Callable[[], T]) -> T:
    """Call `work`, which reads a request of `size` bytes, and return its result. Large requests are read in a
    thread, one at a time, so that other requests go on meanwhile. Their contents are limited beforehand
    (`wire.json`), because the interpreter's lock lets other threads in between two steps, not within one.
    `work` blocks, and must use nothing that belongs to the event loop."""
    if size < LARGE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_reader, work)


_KINDS: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
}


class LinkPage:
    """A page that opens by a link (`calls.links`), and is itself the same for everybody.

    `path`: where it is, such as `/shell/`; its parts are below that, each by the name of its file.
    `directory`: has the page, `page.html`, and its parts. `policy`: what it may load besides scripts.
    """

    def __init__(self, path: str, directory: Path, policy: str) -> None:
        self._path = path
        files = {file.name: file for file in directory.rglob("*") if file.suffix in _KINDS}
        self._files = {"": files.pop("page.html"), **files}
        policy = (
            f"default-src 'none'; script-src 'self'; connect-src 'self'; {policy}; "
            "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        )
        self._guards = [
            (b"content-security-policy", policy.encode()),
            (b"referrer-policy", b"no-referrer"),
            (b"x-content-type-options", b"nosniff"),
            (b"cache-control", b"no-cache"),
        ]

    def answer(self, request: Request) -> Response | None:
        """Return the page, or the part that a request names; None if it names none."""
        if request.method not in ("GET", "HEAD"):
            return None
        if request.raw_path == self._path[:-1]:
            headers = [(b"location", self._path.encode()), (b"content-length", b"0")]
            return Response(b"", 308, headers)
        file = self._files.get(request.raw_path.removeprefix(self._path))
        if file is None:
            return None
        body = b"" if request.method == "HEAD" else file.read_bytes()
        return sized(body, _KINDS[file.suffix], more=self._guards)
