"""HTTP requests and responses for the API surfaces, and the processing of every request.

They are plain ASGI without a framework, so that submitting a job takes less than a millisecond.
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
"""The header of a 401. It has a realm because httplib2, used by Google's API client library, cannot parse a
challenge without parameters."""
_GZIP: Final = 16
"""Added to zlib's window bits for data with gzip's header and checksum."""
_DRAIN_SECONDS: Final = 2.0
_DRAIN_BYTES: Final = 10 << 20


class Disconnected(Exception):
    """The client disconnected before the end of its request."""


class BodyTooLarge(Exception):
    """A body exceeds the size limit of its request."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"Request payload size exceeds the limit: {max_bytes} bytes.")


class BodyNotRead(Exception):
    """The encoding of a body is unknown, or differs from the request's Content-Encoding."""


class Request:
    """One HTTP request. Its body can be read once, by `body` or by `blocks`."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        #: The API whose error format applies (a set of `wire.pool`), once it is known.
        self.api = ""
        self._receive = receive
        self._is_complete = False
        self._is_gone = False

    def at(self, path: bytes) -> "Request":
        """Return the same request with this encoded path."""
        decoded = unquote(path.decode("latin-1"))
        return Request({**self.scope, "raw_path": path, "path": decoded}, self._receive)

    def override(self) -> bool:
        """Apply the header X-HTTP-Method-Override of a POST. Return whether the body contains the query.

        The apiclient uses it for a GET with a URL over 2 KiB, Java's clients for each PATCH, and other
        clients behind a proxy that supports two methods.
        """
        method = self.headers.get(_OVERRIDE, "").upper() if self.method == "POST" else ""
        if method not in _VERBS:
            return False
        self.scope["method"] = method
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return method == "GET" and kind == "application/x-www-form-urlencoded"

    @property
    def method(self) -> str:
        return self.scope["method"]

    @property
    def path(self) -> str:
        """The path, percent-decoded."""
        return self.scope["path"]

    @cached_property
    def raw_path(self) -> str:
        """The path in its original form: percent-encoded and without the query."""
        raw: bytes | None = self.scope.get("raw_path")
        return raw.partition(b"?")[0].decode("latin-1") if raw is not None else self.path

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """The headers by lower-case name. Of several with the same name, the first."""
        sent: Headers = self.scope["headers"]
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(sent)}

    @property
    def raw_query(self) -> str:
        return self.scope["query_string"].decode("latin-1")

    @cached_property
    def parameters(self) -> Sequence[tuple[str, str]]:
        """The decoded pairs of the query in order, including pairs without a value."""
        return parse_qsl(self.raw_query, keep_blank_values=True)

    @cached_property
    def values(self) -> Mapping[str, Sequence[str]]:
        values: dict[str, list[str]] = {}
        for name, value in self.parameters:
            values.setdefault(name, []).append(value)
        return values

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The parameters by name. Of several with the same name, the last."""
        return dict(self.parameters)

    async def body(self, max_bytes: int) -> bytes:
        """Return the whole body in its original encoding.

        Raises BodyTooLarge for more than `max_bytes` bytes, without reading if Content-Length exceeds the
        limit. Raises Disconnected if the client disconnects before the end.
        """
        length = self.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > max_bytes):
            if "expect" not in self.headers:
                await self._drain()
            raise BodyTooLarge(max_bytes)
        parts: list[bytes] = []
        size = 0
        async for part in self.blocks():
            parts.append(part)
            size += len(part)
            if size > max_bytes:
                parts.clear()
                await self._drain()
                raise BodyTooLarge(max_bytes)
        return b"".join(parts)

    async def decoded_body(self, max_bytes: int) -> bytes:
        """Return the whole body after decoding its Content-Encoding. Raises BodyNotRead, and BodyTooLarge for
        more than `max_bytes` bytes, encoded or decoded."""
        body = await self.body(max_bytes)
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("identity", ""):
            return body
        if encoding not in ("gzip", "x-gzip"):
            raise BodyNotRead(
                f"The request's Content-Encoding is {encoding!r}. Send the body without encoding, or as gzip."
            )
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | _GZIP)
        try:
            unpacked = unpacker.decompress(body, max_bytes + 1)
        except zlib.error as error:
            raise BodyNotRead(
                f"The request's body is not valid gzip: {error}. Send it again."
            ) from None
        if len(unpacked) > max_bytes:
            raise BodyTooLarge(max_bytes)
        if not unpacker.eof:
            raise BodyNotRead(
                "The request's body ends before the end of the gzip data. Send it again."
            )
        return unpacked

    async def _drain(self) -> None:
        """Read and drop the rest of the request, up to a limit: the client reads no answer before it has sent
        everything."""
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while size < _DRAIN_BYTES and (message := await self._receive()).get("more_body"):
                    size += len(message.get("body", b""))

    async def blocks(self) -> AsyncIterator[bytes]:
        """Yield the body in pieces as they arrive. Raises Disconnected if the client disconnects before the
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
        """Whether the client has disconnected. Drops further data."""
        if not self._is_gone:
            with contextlib.suppress(TimeoutError):
                # With a timeout of 0, only messages that have already arrived are received.
                async with asyncio.timeout(0):
                    self._is_gone = (await self._receive())["type"] == "http.disconnect"
        return self._is_gone

    async def wait_disconnect(self) -> None:
        """Return when the client has disconnected. Drops further data."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Response:
    """A response with a body of known length."""

    def __init__(self, body: bytes = b"", status: int = 200, headers: Headers = ()) -> None:
        """`headers`: the complete headers; none are added."""
        self.body = body
        self.status = status
        self.headers = list(headers)

    async def send(self, receive: Receive, send: Send) -> None:
        """Send the response. The whole request must have been read."""
        await self.start(send)
        await send({"type": "http.response.body", "body": self.body})

    async def start(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status, "headers": self.headers}
        await send(start)


def error_body(status: int, text: str, name: str) -> bytes:
    """Return the JSON body of an error in the form of the public APIs. `name`: the google.rpc.Code."""
    error = {"code": status, "message": text, "status": name}
    return json.dumps({"error": error}, indent=2).encode() + b"\n"


def sized(body: bytes, kind: bytes, status: int = 200, more: Headers = ()) -> Response:
    """Return a response with this media type and a Content-Length. `more`: further headers."""
    length = (b"content-length", str(len(body)).encode())
    return Response(body, status, [(b"content-type", kind), length, *more])


Lapse = Callable[[], Coroutine[Any, Any, Any]]
"""Returns when the caller loses the right to the rest of an answer."""


class Streamed(Response):
    """A response whose parts are sent until they end, the client disconnects, or the server shuts down."""

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
                # Sending to a fast reader never waits, so let other tasks run.
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
            # The status line has already been sent. Only an unfinished body can show the client that parts
            # are missing. The server logs the fault.
            raise fault
        await send({"type": "http.response.body", "body": b""})


C = TypeVar("C")
Answer = Callable[[C], Awaitable[Response]]
"""Authenticates the caller, parses the request and executes it. Raises any error."""
Refuse = Callable[[C, Exception], Response]
"""Returns the response for an error, in the public form of its API. Logs internal errors, since no later
function knows the request."""


async def respond(call: C, answer: Answer[C], refuse: Refuse[C]) -> Response:
    """Return the response to a request, which may be an error. Raises Disconnected."""
    try:
        return await answer(call)
    except Disconnected:
        raise
    except Exception as error:  # The caller gets an answer for every error.
        return refuse(call, error)


async def serve(
    call: C, answer: Answer[C], refuse: Refuse[C], receive: Receive, send: Send
) -> None:
    with contextlib.suppress(Disconnected):
        response = await respond(call, answer, refuse)
        await response.send(receive, send)
