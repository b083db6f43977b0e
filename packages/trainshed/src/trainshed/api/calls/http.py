"""What the API's surfaces share over HTTP: size limits of requests, JSON answers, errors in the public
form."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, cast

from trainshed.api.calls.errors import Refusal, internal_refusal, refusal
from trainshed.httpd.messages import CHALLENGE, JSON, Request, Response, sized
from trainshed.wire.json import decode_text, encode_text
from trainshed.wire.status import StatusCode, Violation, WireError, error_body

MAX_BODY: Final = 10 * 1024 * 1024
"""Most bytes of a request that makes something; the public services have the same limit."""
SMALL_BODY: Final = 64 * 1024
"""Most bytes of a request that makes nothing."""
_MAKING: Final = (
    *("Add", "BatchCreate", "BatchImport", "Complete", "Create", "Import"),
    *("Update", "Upload", "Write"),
)

NDJSON: Final = b"application/x-ndjson"
_log = logging.getLogger("trainshed.api")
T = TypeVar("T")
LARGE: Final = 16 << 10
"""Bytes of a request from which on it is read in a thread."""
_reader: Final = ThreadPoolExecutor(1, "large-requests")


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
    refused = refusal(error, request.api)
    if refused is None:
        _log.error("%s %s failed", request.method, request.raw_path, exc_info=error)
        refused = internal_refusal()
    return refusal_answer(refused)


def no_such_method(request: Request, where: str = "") -> Refusal:
    """Return the refusal of a request that nothing serves."""
    text = f"There is no method {request.method} {request.raw_path}{where}."
    return Refusal(StatusCode.NOT_FOUND, text)


def decode_body(text: bytes) -> Any:
    """Return the JSON of a body, each string of which can be stored and answered. Raises WireError."""
    value = decode_text(text)
    if b"\\ud" in text.lower():
        try:
            encode_text(value)
        except UnicodeEncodeError:
            wrong = "Invalid JSON payload received. A string holds half of a surrogate pair."
            raise WireError((Violation("", wrong),)) from None
    return value


async def sent_object(request: Request, most: int) -> dict[str, Any]:
    """Return the JSON object of a request of at most so many bytes; {} for an empty body. Raises WireError,
    BodyTooLarge, BodyNotRead."""
    text = await request.decoded_body(most)
    value = await read_aside(len(text), lambda: decode_body(text))
    if not isinstance(value, dict):
        wrong = "Invalid JSON payload received. The body must be an object: {...}."
        raise WireError((Violation("", wrong),))
    return cast("dict[str, Any]", value)


async def read_aside(size: int, work: Callable[[], T]) -> T:
    """Call `work`, which reads a request of `size` bytes, and return its result. Large requests are read in a
    thread, one at a time, so that other requests go on meanwhile. Their contents are limited beforehand
    (`wire.counts`), because the interpreter's lock lets other threads in between two steps, not within one.
    `work` blocks, and must use nothing that belongs to the event loop."""
    if size < LARGE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_reader, work)
