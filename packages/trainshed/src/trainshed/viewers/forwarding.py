"""Forwards a browser's request to a viewer's Unix socket, and streams the answer back.

Only listed headers pass either way: no token and no cookie reaches a viewer, and nothing that a viewer says
of cookies, other origins, addresses or workers reaches a browser.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import httptools
from msgspec import Struct

from trainshed.httpd.messages import Request, Streamed
from trainshed.replica.system.unix_sockets import reachable

_READ: Final = 1 << 16
_LONGEST_HEAD: Final = 1 << 16
_MOST_BODY: Final = 1 << 20
"""Bytes of a request's body: TensorBoard's page sends forms with lists of runs and tags."""
_PATIENCE: Final = 120.0
"""Seconds for the head of an answer: TensorBoard reads event files of any size."""
_SENT: Final = ("accept", "accept-encoding", "accept-language", "content-type")
_PASSED: Final = frozenset(
    {
        *(b"content-type", b"content-encoding", b"content-length", b"content-disposition", b"vary"),
        b"content-security-policy",
    }
)


class NoAnswer(Exception):
    """The viewer has ended, does not answer in time, or its answer is not HTTP."""


class _Answer:
    """Collects what the HTTP parser reports to its callbacks."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = False
        self.is_done = False
        self.body: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in _PASSED:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, block: bytes) -> None:
        self.body.append(block)

    def on_message_complete(self) -> None:
        self.is_done = True

    def blocks(self) -> bytes:
        """Return what came of the body since the last call."""
        body = b"".join(self.body)
        self.body.clear()
        return body


async def forward(
    socket: str, request: Request, closing: asyncio.Event, more: list[tuple[bytes, bytes]]
) -> Streamed:
    """Forward a request; return the answer, whose body is still to come. `more`: headers that are added.
    Raises NoAnswer, BodyTooLarge."""
    body = b"" if request.method in ("GET", "HEAD") else await request.body(_MOST_BODY)
    exchange = await _ask(socket, _head(request, len(body)) + body)
    answer = exchange.answer
    answer.is_done |= request.method == "HEAD"
    streamed = Streamed(exchange.parts(), closing, b"")
    streamed.status = exchange.parser.get_status_code()
    streamed.headers = [*answer.headers, *more]
    return streamed


async def status_of(socket: str, path: str) -> int:
    """Return the status of the viewer's answer to a GET of the service itself. Raises NoAnswer."""
    message = f"GET {path} HTTP/1.1\r\nhost: viewer\r\nconnection: close\r\n\r\n"
    exchange = await _ask(socket, message.encode("latin-1"))
    exchange.writer.close()
    return exchange.parser.get_status_code()


class _Exchange(Struct, frozen=True):
    """An exchange in which the head of the answer has arrived."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    parser: httptools.HttpResponseParser
    answer: _Answer

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yield the body as it comes. If it is cut short, the server cuts its own answer to the browser."""
        try:
            while True:
                if body := self.answer.blocks():
                    yield body
                if self.answer.is_done:
                    return
                data = await self.reader.read(_READ)
                if not data:
                    return
                self.parser.feed_data(data)
        finally:
            self.writer.close()


async def _ask(socket: str, message: bytes) -> _Exchange:
    """Send a message and wait for the head of the answer. Raises NoAnswer."""
    try:
        with reachable(socket) as short:
            reader, writer = await asyncio.open_unix_connection(short, limit=_READ)
    except OSError as failure:
        raise NoAnswer(str(failure)) from None
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    try:
        writer.write(message)
        async with asyncio.timeout(_PATIENCE):
            await writer.drain()
            await _read_head(reader, parser, answer)
    except (OSError, TimeoutError, httptools.HttpParserError) as failure:
        writer.close()
        raise NoAnswer(str(failure) or "it does not answer") from None
    except BaseException:
        writer.close()
        raise
    return _Exchange(reader, writer, parser, answer)


async def _read_head(
    reader: asyncio.StreamReader, parser: httptools.HttpResponseParser, answer: _Answer
) -> None:
    size = 0
    while not answer.has_head:
        data = await reader.read(_READ)
        size += len(data)
        if not data or size > _LONGEST_HEAD + _READ:
            raise ConnectionError("it has ended" if not data else "its head has no end")
        parser.feed_data(data)


def _head(request: Request, size: int) -> bytes:
    target = request.raw_path + (f"?{request.raw_query}" if request.raw_query else "")
    lines = [f"{request.method} {target} HTTP/1.1", "host: viewer", "connection: close"]
    lines += [f"{name}: {request.headers[name]}" for name in _SENT if name in request.headers]
    if request.method not in ("GET", "HEAD"):
        lines.append(f"content-length: {size}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
