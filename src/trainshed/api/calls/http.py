"""The few HTTP pieces that every surface uses: reading a body, answering JSON, streaming lines. ASGI, no
framework in between: a job is submitted within a fraction of a millisecond."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from trainshed.api.calls.errors import Refusal, internal_refusal, refusal
from trainshed.eventloop.background import joined
from trainshed.wire.status import StatusCode, Violation, WireError, error_body

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY: Final = 10 * 1024 * 1024
"""Bytes of the largest request, one that makes something; the public services draw the line at the same
size."""
SMALL_BODY: Final = 64 * 1024
"""Bytes of a request that makes nothing."""
_MAKING: Final = ("Create", "Upload", "Update", "Write", "Add", "Complete")
_DRAIN_SECONDS: Final = 2.0

NDJSON: Final = b"application/x-ndjson"
TAR: Final = b"application/x-tar"
_JSON: Final = b"application/json; charset=UTF-8"
_CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="trainshed"')
"""With a realm: httplib2, below Google's API client library, cannot read a challenge without parameters."""
_log = logging.getLogger("trainshed.api")
T = TypeVar("T")
LARGE: Final = 16 << 10
"""Bytes of a request from which on it is read aside."""
_reader: Final = ThreadPoolExecutor(1, "large-requests")


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of that (lower-case) name."""
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    for key, value in headers:
        if key == name:
            return value.decode("latin-1")
    return None


def raw_path(scope: Scope) -> str:
    """The path as it came, still percent-encoded and without the query."""
    raw: bytes | None = scope.get("raw_path")
    return raw.partition(b"?")[0].decode("latin-1") if raw is not None else scope["path"]


def root_url(scope: Scope) -> str:
    """Scheme and authority by which the caller reached the service."""
    # By the Unix socket come replicas' endpoints, which end their programs' TLS.
    _, port = scope.get("server") or ("", 0)
    scheme = "https" if port is None else scope.get("scheme", "http")
    return f"{scheme}://{header(scope, b'host') or 'localhost'}"


def most_of(method: str) -> int:
    """Bytes that a request of a public method may have, by its name: many for what is made or written, few
    for all else."""
    return MAX_BODY if method.startswith(_MAKING) else SMALL_BODY


async def read_body(scope: Scope, receive: Receive, most: int) -> bytes:
    """The whole body. Raises WireError if it has more than `most` bytes: unread where it says so itself."""
    length = header(scope, b"content-length") or ""
    if length.isdecimal() and (len(length) > 18 or int(length) > most):
        if header(scope, b"expect") is None:
            await _drain(receive)
        raise _too_large(most)
    message = await receive()
    body: bytes = message.get("body", b"")
    parts, size = [body], len(body)
    while message.get("more_body") and size <= most:
        message = await receive()
        part: bytes = message.get("body", b"")
        parts.append(part)
        size += len(part)
    if size > most:
        parts.clear()
        await _drain(receive)
        raise _too_large(most)
    return b"".join(parts)


async def _drain(receive: Receive) -> None:
    """Pass over what a caller is still sending, within reason: he reads no answer before he has sent it."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while size < MAX_BODY and (message := await receive()).get("more_body"):
                size += len(message.get("body", b""))


def _too_large(most: int) -> WireError:
    return WireError((Violation("", f"Request payload size exceeds the limit: {most} bytes."),))


async def send_json(
    send: Send, body: bytes, status: int = 200, extra: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Answer with a JSON body."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", _JSON),
                (b"content-length", str(len(body)).encode()),
                *extra,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def send_refusal(send: Send, refused: Refusal) -> None:
    """Answer with the public error shape."""
    extra = (_CHALLENGE,) if refused.code is StatusCode.UNAUTHENTICATED else ()
    body = error_body(refused.code, refused.message, refused.violations)
    await send_json(send, body, refused.code.http, extra)


async def send_error(send: Send, error: Exception, api: str, what: str) -> None:
    """Answer a caller of `api` with what `error` means; a fault of our own goes to the log whole."""
    refused = refusal(error, api)
    if refused is None:
        _log.error("%s failed", what, exc_info=error)
        refused = internal_refusal()
    await send_refusal(send, refused)


async def send_stream(
    receive: Receive,
    send: Send,
    lines: AsyncGenerator[bytes],
    closing: asyncio.Event,
    kind: bytes = NDJSON,
) -> None:
    """Stream `lines`, or other parts of a whole, until they end, the caller goes away, or the server shuts
    down."""
    start = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", kind), (b"cache-control", b"no-store")],
    }
    await send(start)

    async def pump() -> None:
        async for line in lines:
            await send({"type": "http.response.body", "body": line, "more_body": True})
            # What has much to send, to somebody who reads fast, would never wait for anything.
            await asyncio.sleep(0)

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    pumping = joined(pump())
    enders = (joined(gone()), joined(closing.wait()))
    try:
        await asyncio.wait((pumping, *enders), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (pumping, *enders):
            task.cancel()
        await asyncio.gather(pumping, *enders, return_exceptions=True)
        await lines.aclose()
    if not pumping.cancelled() and (fault := pumping.exception()) is not None:
        # The status line is out; an unfinished body is how the caller learns that lines are missing. The
        # server logs it.
        raise fault
    await send({"type": "http.response.body", "body": b""})


async def read_aside(size: int, work: Callable[[], T]) -> T:
    """Do the work that a request of so many bytes makes, of a large one in a thread, one at a time: everybody
    else goes on meanwhile. What a request may hold is bounded before (`wire.counts`), for the interpreter's
    lock lets others in between two steps, not within one. `work` blocks, and uses nothing that belongs to the
    event loop."""
    if size < LARGE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_reader, work)
