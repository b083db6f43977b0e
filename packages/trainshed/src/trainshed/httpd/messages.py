"""HTTP requests and responses as the surfaces see them, and how every request is run: begun, answered or
refused, and its response sent.

They are plain ASGI without a framework, since a job is submitted within a fraction of a millisecond.
"""

import asyncio
import contextlib
import json
import zlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    MutableMapping,
    Sequence,
)
from functools import cached_property
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

from trainshed.eventloop.background import first_of

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

JSON: Final = b"application/json; charset=UTF-8"
_OVERRIDE: Final = "x-http-method-override"
_VERBS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
CHALLENGE: Final = (b"www-authenticate", b'Bearer realm="trainshed"')
"""The header of a 401. It has a realm because httplib2, which Google's API client library uses, cannot parse
a challenge without parameters."""
_GZIP: Final = 16
"""Added to zlib's window bits: the data have gzip's header and checksum."""
_DRAIN_SECONDS: Final = 2.0
_DRAIN_BYTES: Final = 10 << 20


class Disconnected(Exception):
    """The client went away before its request was complete."""


class BodyTooLarge(Exception):
    """A body has more bytes than its request may have."""

    def __init__(self, most: int) -> None:
        super().__init__(f"Request payload size exceeds the limit: {most} bytes.")


class BodyNotRead(Exception):
    """A body has an unknown encoding, or is not encoded as its request says."""


class Request:
    """One HTTP request. Its body can be read once, by `body` or by `blocks`."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        #: The API in whose form errors are answered (a set of `wire.pool`), once that is known.
        self.api = ""
        self._receive = receive
        self._is_complete = False
        self._is_gone = False

    def at(self, path: bytes) -> "Request":
        """Returns the same request as if it had been sent to this encoded path."""
        decoded = unquote(path.decode("latin-1"))
        return Request({**self.scope, "raw_path": path, "path": decoded}, self._receive)

    def override(self) -> bool:
        """Apply the verb that a header of a POST names; return whether the body is the query. The apiclient
        sends a GET whose address is longer than 2 KiB in this way, Java's clients each PATCH, and so does
        whoever is behind a proxy that knows two verbs."""
        meant = self.headers.get(_OVERRIDE, "").upper() if self.method == "POST" else ""
        if meant not in _VERBS:
            return False
        self.scope["method"] = meant
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return meant == "GET" and kind == "application/x-www-form-urlencoded"

    @property
    def method(self) -> str:
        return self.scope["method"]

    @property
    def path(self) -> str:
        """The path, percent-decoded."""
        return self.scope["path"]

    @cached_property
    def raw_path(self) -> str:
        """The path as it was sent, percent-encoded and without the query."""
        raw: bytes | None = self.scope.get("raw_path")
        return raw.partition(b"?")[0].decode("latin-1") if raw is not None else self.path

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """The headers by lower-case name; of several with one name, the first."""
        sent: Headers = self.scope["headers"]
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(sent)}

    @property
    def raw_query(self) -> str:
        return self.scope["query_string"].decode("latin-1")

    @cached_property
    def parameters(self) -> Sequence[tuple[str, str]]:
        """The decoded pairs of the query in their order, including those without a value."""
        return parse_qsl(self.raw_query, keep_blank_values=True)

    @cached_property
    def values(self) -> Mapping[str, Sequence[str]]:
        values: dict[str, list[str]] = {}
        for name, value in self.parameters:
            values.setdefault(name, []).append(value)
        return values

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The parameters by name; of several with one name, the last."""
        return dict(self.parameters)

    async def body(self, most: int) -> bytes:
        """Returns the whole body as it was sent. Raises BodyTooLarge if it has more than `most` bytes;
        nothing is read if its Content-Length says so. Raises Disconnected if the client goes away before its
        end."""
        length = self.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > most):
            if "expect" not in self.headers:
                await self._drain()
            raise BodyTooLarge(most)
        parts: list[bytes] = []
        size = 0
        async for part in self.blocks():
            parts.append(part)
            size += len(part)
            if size > most:
                parts.clear()
                await self._drain()
                raise BodyTooLarge(most)
        return b"".join(parts)

    async def decoded_body(self, most: int) -> bytes:
        """Returns the whole body with its Content-Encoding undone. Raises BodyNotRead; BodyTooLarge if it has
        more than `most` bytes, encoded or not."""
        body = await self.body(most)
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("identity", ""):
            return body
        if encoding not in ("gzip", "x-gzip"):
            raise BodyNotRead(
                f"The request's Content-Encoding is {encoding!r}; send its body as it is, or as gzip."
            )
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | _GZIP)
        try:
            unpacked = unpacker.decompress(body, most + 1)
        except zlib.error as error:
            raise BodyNotRead(f"The request's body is not gzip, as it says: {error}.") from None
        if len(unpacked) > most:
            raise BodyTooLarge(most)
        if not unpacker.eof:
            raise BodyNotRead("The request's body ends before the end of what gzip packed.")
        return unpacked

    async def _drain(self) -> None:
        """Read and drop what the caller is still sending, up to a limit: it reads no answer before it has
        sent everything."""
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while size < _DRAIN_BYTES and (message := await self._receive()).get("more_body"):
                    size += len(message.get("body", b""))

    async def blocks(self) -> AsyncIterator[bytes]:
        """Yields the body as its pieces arrive. Raises Disconnected if the client goes away before its
        end."""
        while not self._is_complete:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._is_gone = True
                raise Disconnected
            self._is_complete = not message.get("more_body", False)
            if body := message.get("body", b""):
                yield body

    async def is_gone(self) -> bool:
        """Whether the client has gone away. What it still sends is dropped."""
        if not self._is_gone:
            with contextlib.suppress(TimeoutError):
                # A timeout of 0 takes only messages that have arrived already.
                async with asyncio.timeout(0):
                    self._is_gone = (await self._receive())["type"] == "http.disconnect"
        return self._is_gone

    async def left(self) -> None:
        """Return when the client has gone away. What it still sends is dropped."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Response:
    """A response whose body is known before it is sent."""

    def __init__(self, body: bytes = b"", status: int = 200, headers: Headers = ()) -> None:
        """`headers`: all headers; none are added."""
        self.body = body
        self.status = status
        self.headers = list(headers)

    async def send(self, receive: Receive, send: Send) -> None:
        """Send the response. `receive` says whether the client has gone; its request has been read."""
        await self.start(send)
        await send({"type": "http.response.body", "body": self.body})

    async def start(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status, "headers": self.headers}
        await send(start)


def error_body(status: int, text: str, name: str) -> bytes:
    """An error's JSON body, in the form of the public APIs. `name` is the one of the google.rpc.Code."""
    error = {"code": status, "message": text, "status": name}
    return json.dumps({"error": error}, indent=2).encode() + b"\n"


def sized(body: bytes, kind: bytes, status: int = 200, more: Headers = ()) -> Response:
    """Returns a response with this media type and a Content-Length. `more`: further headers."""
    length = (b"content-length", str(len(body)).encode())
    return Response(body, status, [(b"content-type", kind), length, *more])


Lapse = Callable[[], Coroutine[Any, Any, Any]]
"""Returns when a caller may have no more of an answer."""


class Streamed(Response):
    """A response whose parts are sent until they end, the caller goes away, or the server shuts down."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes],
        closing: asyncio.Event,
        kind: bytes,
        lapse: Lapse | None = None,
    ) -> None:
        super().__init__(headers=[(b"content-type", kind), (b"cache-control", b"no-store")])
        self._parts = parts
        self._closing = closing
        self._lapse = lapse

    async def send(self, receive: Receive, send: Send) -> None:
        await self.start(send)

        async def pump() -> None:
            async for part in self._parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                # Sending to a fast reader never waits, so let others run.
                await asyncio.sleep(0)

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        enders = [gone(), self._closing.wait(), *([self._lapse()] if self._lapse else [])]
        try:
            pumping, *_ = await first_of(pump(), *enders)
        finally:
            await self._parts.aclose()
        if not pumping.cancelled() and (fault := pumping.exception()) is not None:
            # The status line is sent already: only an unfinished body can tell the caller that parts are
            # missing. The server logs the fault.
            raise fault
        await send({"type": "http.response.body", "body": b""})


C = TypeVar("C")
Answer = Callable[[C], Awaitable[Response]]
"""Finds out who calls and what is asked, and does it. Raises whatever is wrong."""
Refuse = Callable[[C, Exception], Response]
"""Returns the response to a request that raised an error, in the public form of its API. A fault of the
service itself is logged there, since no later function knows the request."""


async def respond(call: C, answer: Answer[C], refuse: Refuse[C]) -> Response:
    """Return the response to a request in progress, which may be a refusal. Raises Disconnected."""
    try:
        return await answer(call)
    except Disconnected:
        raise
    except Exception as error:  # Whatever went wrong, the caller gets an answer.
        return refuse(call, error)


async def serve(
    call: C, answer: Answer[C], refuse: Refuse[C], receive: Receive, send: Send
) -> None:
    with contextlib.suppress(Disconnected):
        response = await respond(call, answer, refuse)
        await response.send(receive, send)
