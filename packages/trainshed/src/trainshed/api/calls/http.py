"""Functions that the HTTP surfaces share: request IDs, request logs, size limits, JSON responses, public
errors, and pages that links open."""

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from trainshed.api.calls.errors import PublicError, public_error
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
    sized_response,
)
from trainshed.telemetry.lines import request_id
from trainshed.telemetry.meters import Meters
from trainshed.wire.json import decode_text
from trainshed.wire.status import StatusCode, Violation, WireError, error_body

MAX_BODY: Final = 10 * 1024 * 1024
"""Maximum size in bytes of a request that creates or writes a resource. It equals the limit of the public
services."""
SMALL_BODY: Final = 64 * 1024
"""Maximum size in bytes of a request that neither creates nor writes a resource."""
_WRITING_PREFIXES: Final = (
    *("Add", "BatchCreate", "BatchImport", "Complete", "Create", "Import"),
    *("Set", "Update", "Upload", "Write"),
)

NDJSON: Final = b"application/x-ndjson"
T = TypeVar("T")
LARGE_BODY: Final = 16 << 10
"""Minimum size in bytes of a request that is parsed in a thread."""
_reader: Final = ThreadPoolExecutor(1, "large-requests")
HEADER: Final = "x-request-id"
METHOD: Final = "trainshed.method"
"""ASGI scope key for the full name of the called method. Streams do not set it."""
_HEADER: Final = HEADER.encode()
_WELL_FORMED: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECRET_PART: Final = re.compile(r"(?<=/with/)[^/]+|(?<=/tensorboard/)([0-9-]+/)[^/]+")
"""Matches the key in a storage address (`buckets.callers`), and the mark in the address of a TensorBoard
view. They grant access to buckets and views, so logs must not contain them."""
_random: Final = random.Random()
"""Generates request IDs. These are not secret, so they need no system call for each ID."""
_log = logging.getLogger("trainshed.requests")


async def serve_logged(
    application: Application, scope: Scope, receive: Receive, send: Send, meters: Meters
) -> None:
    """Serve an HTTP request with a request ID. At its end, log it at level INFO. Also count it if the scope
    contains the method (`METHOD`)."""
    sent = next((value for name, value in scope["headers"] if name == _HEADER), b"")
    identity, status, began = request_id_of(sent.decode("latin-1")), 0, time.perf_counter()

    async def send_with_id(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = [pair for pair in message.get("headers", ()) if pair[0] != _HEADER]
            message = {**message, "headers": [*headers, (_HEADER, identity.encode())]}
        await send(message)

    token = request_id.set(identity)
    try:
        await application(scope, receive, send_with_id)
    finally:
        if status and (method := scope.get(METHOD)):
            meters.requests.observe(time.perf_counter() - began, "rest", method, str(status))
        log_request(scope["method"], scope["path"], str(status or "-"), began)
        request_id.reset(token)


def request_id_of(identity: str) -> str:
    """Return the request ID that a client has sent if it is well-formed. Otherwise return a new one."""
    if identity and _WELL_FORMED.fullmatch(identity):
        return identity
    return f"{_random.getrandbits(64):016x}"


def log_request(method: str, path: str, status: str, began: float) -> None:
    """Log one line about a finished request. `began`: the value of `time.perf_counter` at its start."""
    if not _log.isEnabledFor(logging.INFO):
        return
    milliseconds = (time.perf_counter() - began) * 1e3
    _log.info("%s %s %s %.1f ms", method, _SECRET_PART.sub(r"\1KEY", path), status, milliseconds)


def max_body_size(method: str) -> int:
    """Return the maximum size in bytes of a request: MAX_BODY for public methods that create or write a
    resource, SMALL_BODY for all others."""
    return MAX_BODY if method.startswith(_WRITING_PREFIXES) else SMALL_BODY


def json_response(body: bytes) -> Response:
    return sized_response(body, JSON)


def public_error_response(refused: PublicError) -> Response:
    """Return the response for a public error."""
    more = (CHALLENGE,) if refused.code is StatusCode.UNAUTHENTICATED else ()
    body = error_body(refused.code, refused.message, refused.violations)
    return sized_response(body, JSON, refused.code.http, more)


def error_response(request: Request, error: Exception) -> Response:
    """Return the response for an exception, in the form of the API `request.api`. Internal errors are
    logged."""
    return public_error_response(public_error(error, request.api, f"{request.method} {request.raw_path}"))


def unknown_method(request: Request) -> PublicError:
    """Return the error for a request whose path or method is not served."""
    text = f"The method {request.method} {request.raw_path} does not exist. Check the address."
    return PublicError(StatusCode.NOT_FOUND, text)


async def read_json_object(request: Request, max_size: int) -> dict[str, Any]:
    """Return the JSON object in a request body, or {} for an empty body. The maximum size is in bytes. Raises
    WireError, BodyTooLarge and BodyNotRead."""
    text = await request.decoded_body(max_size)
    value = await parse_by_size(len(text), lambda: decode_text(text))
    if not isinstance(value, dict):
        wrong = "Invalid JSON payload received. The body must be an object: {...}."
        raise WireError((Violation("", wrong),))
    return cast("dict[str, Any]", value)


async def parse_by_size(size: int, parse: Callable[[], T]) -> T:
    """Parse a request of `size` bytes by calling `parse`, and return the result.

    Large requests are parsed in a thread, one at a time, so the event loop continues to serve other requests.
    `wire.json` limits their contents beforehand, because a long step of the interpreter would block all
    threads. `parse` may block, but must not use objects of the event loop.
    """
    if size < LARGE_BODY:
        return parse()
    return await asyncio.get_running_loop().run_in_executor(_reader, parse)


_CONTENT_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
}


class LinkPage:
    """A page that a link opens (`calls.links`), with its files. The page is the same for all users.

    `path`: the path of the page, such as `/shell/`. The page's files are below this path. `directory`: the
    directory with `page.html` and the other files. `policy`: additional directives of the content security
    policy.
    """

    def __init__(self, path: str, directory: Path, policy: str) -> None:
        self._path = path
        files = {file.name: file for file in directory.rglob("*") if file.suffix in _CONTENT_TYPES}
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
        """Return the page or the file that a request selects, or None if the path selects neither."""
        if request.method not in ("GET", "HEAD"):
            return None
        if request.raw_path == self._path[:-1]:
            headers = [(b"location", self._path.encode()), (b"content-length", b"0")]
            return Response(b"", 308, headers)
        file = self._files.get(request.raw_path.removeprefix(self._path))
        if file is None:
            return None
        body = b"" if request.method == "HEAD" else file.read_bytes()
        return sized_response(body, _CONTENT_TYPES[file.suffix], more=self._guards)
