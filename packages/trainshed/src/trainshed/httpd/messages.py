"""HTTP requests and responses for the API surfaces, and functions that process every request. They use plain
ASGI without a framework, so submitting a job takes less than a millisecond."""

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
"""The header of a 401 response. It has a realm because httplib2, which Google's API client library uses,
cannot parse a challenge without parameters."""
_GZIP: Final = 16
"""The flag that is added to zlib's window bits for data with gzip's header and checksum."""
_DRAIN_SECONDS: Final = 2.0
_DRAIN_BYTES: Final = 10 << 20


class Disconnected(Exception):
    """The client disconnected before the end of its request."""


class BodyTooLarge(Exception):
    """A request body exceeds its size limit."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"Request payload size exceeds the limit: {max_bytes} bytes.")


class BodyNotRead(Exception):
    """The encoding of a body is unknown, or the body does not match the request's Content-Encoding."""


class Request:
    """One HTTP request. Its body can be read once, by `body` or by `blocks`."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        #: The API whose error format applies (a descriptor set of `wire.pool`); "" = not determined yet.
        self.api = ""
        self._receive = receive
        self._is_complete = False
        self._is_gone = False

    def with_path(self, path: bytes) -> "Request":
        """Return the request with its path replaced by this encoded path."""
        decoded = unquote(path.decode("latin-1"))
        return Request({**self.scope, "raw_path": path, "path": decoded}, self._receive)

    def override(self) -> bool:
        """Apply the header X-HTTP-Method-Override of a POST request. Return whether the body contains the
        query.

        The header is used by these clients:

        - Google's apiclient, for a GET with a URL of more than 2 KiB
        - Java's clients, for each PATCH
        - clients behind a proxy that supports only GET and POST
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
        """The headers by lower-case name. Of several headers with the same name, the first one counts."""
        sent: Headers = self.scope["headers"]
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(sent)}

    @property
    def raw_query(self) -> str:
        return self.scope["query_string"].decode("latin-1")

    @cached_property
    def parameters(self) -> Sequence[tuple[str, str]]:
        """The query's decoded (name, value) pairs in order, including names without a value."""
        return parse_qsl(self.raw_query, keep_blank_values=True)

    @cached_property
    def values(self) -> Mapping[str, Sequence[str]]:
        values: dict[str, list[str]] = {}
        for name, value in self.parameters:
            values.setdefault(name, []).append(value)
        return values

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The query parameters by name. Of several parameters with the same name, the last one counts."""
        return dict(self.parameters)

    async def body(self, max_bytes: int) -> bytes:
        """Return the whole body without decoding its Content-Encoding.

        Raises BodyTooLarge for more than `max_bytes` bytes, without reading the body if Content-Length
        exceeds the limit. Raises Disconnected if the client disconnects before the end of the body.
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
        """Return the whole body after decoding its Content-Encoding. Raises BodyNotRead, and BodyTooLarge if
        the encoded or the decoded body has more than `max_bytes` bytes."""
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
            raise BodyNotRead(f"The request's body is not valid gzip: {error}. Send it again.") from None
        if len(unpacked) > max_bytes:
            raise BodyTooLarge(max_bytes)
        if not unpacker.eof:
            raise BodyNotRead("The request's body ends before the end of the gzip data. Send it again.")
        return unpacked

    async def _drain(self) -> None:
        """Read and drop the rest of the request, up to a limit. Many clients read no response before they
        have sent the whole request."""
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while size < _DRAIN_BYTES and (message := await self._receive()).get("more_body"):
                    size += len(message.get("body", b""))

    async def blocks(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they arrive. Raises Disconnected if the client disconnects before
        the end of the body."""
        while not self._is_complete:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._is_gone = True
                raise Disconnected
            self._is_complete = not message.get("more_body", False)
            if body := message.get("body", b""):
                yield body

    async def is_gone(self) -> bool:
        """Whether the client has disconnected. Drops unread data of the request."""
        if not self._is_gone:
            with contextlib.suppress(TimeoutError):
                # With a timeout of 0, this receives only messages that have already arrived.
                async with asyncio.timeout(0):
                    self._is_gone = (await self._receive())["type"] == "http.disconnect"
        return self._is_gone

    async def wait_disconnect(self) -> None:
        """Wait until the client has disconnected. Drops unread data of the request."""
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
        """Send the response. The whole request must have been read before."""
        await self.start(send)
        await send({"type": "http.response.body", "body": self.body})

    async def start(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status, "headers": self.headers}
        await send(start)


def error_body(status: int, text: str, name: str) -> bytes:
    """Return the JSON body of an error in the form of the public APIs. `name`: the name of its
    google.rpc.Code."""
    error = {"code": status, "message": text, "status": name}
    return json.dumps({"error": error}, indent=2).encode() + b"\n"


def sized_response(body: bytes, kind: bytes, status: int = 200, more: Headers = ()) -> Response:
    """Return a response with this media type and a Content-Length. `more`: additional headers."""
    length = (b"content-length", str(len(body)).encode())
    return Response(body, status, [(b"content-type", kind), length, *more])


Lapse = Callable[[], Coroutine[Any, Any, Any]]
"""A function that returns when the caller loses the right to the rest of a response."""


class StreamedResponse(Response):
    """A response that is sent in parts. It ends with its last part, or when the client disconnects, the
    caller loses the right to it, or the server shuts down."""

    def __init__(
        self, parts: AsyncGenerator[bytes], closing: asyncio.Event, kind: bytes, lapse: Lapse | None = None
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
                # Let other tasks run, because sending to a client that reads fast never waits.
                await asyncio.sleep(0)

        async def wait_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        end_conditions = [wait_disconnect(), self._closing.wait(), *([self._lapse()] if self._lapse else [])]
        try:
            pumping, *_ = await first_of(pump(), *end_conditions)
        finally:
            await self._parts.aclose()
        if not pumping.cancelled() and (fault := pumping.exception()) is not None:
            # Raise the exception, so that the body remains unfinished and the server logs the error. The
            # status line has already been sent, so only an unfinished body can show the client that parts are
            # missing.
            raise fault
        await send({"type": "http.response.body", "body": b""})


C = TypeVar("C")
Answer = Callable[[C], Awaitable[Response]]
"""A function that authenticates the caller, parses the request and executes it. It may raise any exception.
"""
Refuse = Callable[[C, Exception], Response]
"""A function that returns the error response for an exception, in the public form of the API. It logs
internal errors, since later code does not know the request."""


async def respond(call: C, answer: Answer[C], refuse: Refuse[C]) -> Response:
    """Return the response to a request. It may be an error response. Raises Disconnected."""
    try:
        return await answer(call)
    except Disconnected:
        raise
    except Exception as error:  # Catch all, so that the caller always gets a response.
        return refuse(call, error)


async def serve(call: C, answer: Answer[C], refuse: Refuse[C], receive: Receive, send: Send) -> None:
    with contextlib.suppress(Disconnected):
        response = await respond(call, answer, refuse)
        await response.send(receive, send)
