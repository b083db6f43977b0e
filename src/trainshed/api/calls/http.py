"""What the surfaces of the API have in common over HTTP: how large a request may be, its answer in JSON, its
errors in the public form."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from trainshed.api.calls.errors import Refusal, internal_refusal, refusal
from trainshed.httpd.messages import CHALLENGE, JSON, Request, Response, sized
from trainshed.wire.status import StatusCode, error_body

MAX_BODY: Final = 10 * 1024 * 1024
"""Bytes of the largest request, one that makes something; the public services draw the line at the same
size."""
SMALL_BODY: Final = 64 * 1024
"""Bytes of a request that makes nothing."""
_MAKING: Final = (
    *("Add", "BatchCreate", "BatchImport", "Complete", "Create", "Import"),
    *("Update", "Upload", "Write"),
)

NDJSON: Final = b"application/x-ndjson"
TAR: Final = b"application/x-tar"
_log = logging.getLogger("trainshed.api")
T = TypeVar("T")
LARGE: Final = 16 << 10
"""Bytes of a request from which on it is read aside."""
_reader: Final = ThreadPoolExecutor(1, "large-requests")


def most_of(method: str) -> int:
    """Bytes that a request of a public method may have, by its name: many for what is made or written, few
    for all else."""
    return MAX_BODY if method.startswith(_MAKING) else SMALL_BODY


def json_answer(body: bytes) -> Response:
    """An answer in JSON."""
    return sized(body, JSON)


def refusal_answer(refused: Refusal) -> Response:
    """An answer in the public error shape."""
    more = (CHALLENGE,) if refused.code is StatusCode.UNAUTHENTICATED else ()
    body = error_body(refused.code, refused.message, refused.violations)
    return sized(body, JSON, refused.code.http, more)


def error_answer(request: Request, error: Exception) -> Response:
    """What a caller of `request.api` is told of `error`; a fault of our own goes to the log whole."""
    refused = refusal(error, request.api)
    if refused is None:
        _log.error("%s %s failed", request.method, request.raw_path, exc_info=error)
        refused = internal_refusal()
    return refusal_answer(refused)


def no_such_method(request: Request, where: str = "", hint: str = "") -> Refusal:
    """What is told of a request that nothing serves. `hint`: a sentence behind it, with a space before."""
    text = f"There is no method {request.method} {request.raw_path}{where}.{hint}"
    return Refusal(StatusCode.NOT_FOUND, text)


async def read_aside(size: int, work: Callable[[], T]) -> T:
    """Do the work that a request of so many bytes makes, of a large one in a thread, one at a time: everybody
    else goes on meanwhile. What a request may hold is bounded before (`wire.counts`), for the interpreter's
    lock lets others in between two steps, not within one. `work` blocks, and uses nothing that belongs to the
    event loop."""
    if size < LARGE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_reader, work)
