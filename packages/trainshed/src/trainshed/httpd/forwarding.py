"""Forwards requests and WebSockets of browsers to another server, and the server's responses to the browsers.

Only headers that the `Rules` allow are forwarded, in either direction.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, cast

import httptools
from msgspec import Struct

from trainshed.eventloop.background import first_of
from trainshed.httpd.messages import (
    BodyTooLarge,
    Disconnected,
    Headers,
    Lapse,
    Receive,
    Request,
    Scope,
    Send,
    StreamedResponse,
)

if TYPE_CHECKING:
    from websockets.client import ClientProtocol
    from websockets.frames import Frame

_BLOCK_SIZE: Final = 1 << 16
_MAX_HEAD: Final = 1 << 16
RESPONSE_TIMEOUT: Final = 120.0
"""Default timeout in seconds for a response."""
_MAX_MESSAGE: Final = 64 << 20
"""Maximum size in bytes of a WebSocket message from the server, such as an output of a notebook."""
_NORMAL: Final = 1000
_NO_CODE: Final = 1005
"""The code that represents a close without a code. It must not be sent."""
_HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
        *("content-length", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    }
)
"""Headers that are never forwarded, since they apply to one connection. Forwarding them would allow request
smuggling."""

_SIZED: Final = (b"content-length", b"transfer-encoding")


class NoResponse(Exception):
    """The server has ended or does not respond in time, or its response is not HTTP."""


class ServerConnection(Protocol):
    """A connection to the server. An exception in one of its methods ends the forwarding."""

    async def read(self) -> bytes:
        """Return the next bytes; b"" at the end."""
        ...

    async def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Rules(Struct, frozen=True):
    """Filters and limits for forwarding. Hop-by-hop headers are never forwarded."""

    #: Returns the headers to forward from the headers of a request.
    request_headers: Callable[[Headers], Headers]
    #: Returns the headers to forward from the headers of a response.
    response_headers: Callable[[Headers], Headers]
    #: Maximum size of a request body in bytes; None = no limit.
    max_bytes: int | None = None
    #: Timeout in seconds for the head of the response after the complete request, and for sending each block
    #: of the request; None = no timeout.
    timeout: float | None = RESPONSE_TIMEOUT


class ServerResponse:
    """A response, as built by the parser's callbacks. Header names are in lower case."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.has_head = False
        self.is_done = False
        self.body: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.status >= 200:
            self.has_head = True
        else:
            self.headers.clear()  # Skip an interim response. The final response follows.

    def on_body(self, block: bytes) -> None:
        if not self.is_done:
            self.body.append(block)

    def on_message_complete(self) -> None:
        self.is_done = self.has_head

    @property
    def status(self) -> int:
        return self.parser.get_status_code()

    def blocks(self) -> bytes:
        """Return the part of the body received since the last call."""
        body = b"".join(self.body)
        self.body.clear()
        return body


async def forward(
    connection: ServerConnection,
    request: Request,
    rules: Rules,
    closing: asyncio.Event,
    lapse: Lapse | None = None,
) -> StreamedResponse:
    """Forward a request and return its response. The body of the response is forwarded later.

    The response may arrive before the end of the request. The connection to the server is closed after the
    response, or when `lapse` returns. Raises NoResponse, BodyTooLarge and Disconnected.
    """
    try:
        await connection.write(_head(request, rules))
        steps = [
            _read_head(connection),
            _send(connection, request, rules),
            *([_raise_after(lapse)] if lapse else []),
        ]
        tasks = await first_of(*steps)
        response = next(task for task in tasks if not task.cancelled()).result()
    except BaseException:
        connection.close()
        raise
    streamed = StreamedResponse(_parts(connection, response), closing, b"", lapse)
    streamed.status = response.status
    response.is_done |= request.method == "HEAD"
    headers = [
        pair
        for pair in response.headers
        if pair[0] == b"content-length" or pair[0].decode("latin-1") not in _HOP_BY_HOP
    ]
    streamed.headers = list(rules.response_headers(headers))
    return streamed


async def _raise_after(lapse: Lapse) -> NoReturn:
    await lapse()
    raise NoResponse("the permission for the request was revoked")


async def exchange(
    connection: ServerConnection, request: bytes, seconds: float, max_bytes: int
) -> tuple[int, bytes]:
    """Send a request of the service itself, and return status and body of the response.

    Reads `max_bytes` of the body and at most one block more, and closes the connection. Raises NoResponse,
    also if the response is incomplete after `seconds`.
    """
    body = b""
    try:
        async with asyncio.timeout(seconds):
            await connection.write(request)
            response = await _read_head(connection)
            async for block in _parts(connection, response):
                body += block
                if len(body) > max_bytes:
                    break
    except (TimeoutError, httptools.HttpParserError) as failure:
        raise NoResponse(str(failure) or f"the response was incomplete after {seconds:g} s") from None
    finally:
        connection.close()
    return response.status, body


async def _send(connection: ServerConnection, request: Request, rules: Rules) -> NoReturn:
    """Send the body, then wait until the client disconnects or the timeout expires. Raises NoResponse,
    BodyTooLarge and Disconnected."""
    await _send_body(connection, request, rules)
    try:
        async with asyncio.timeout(rules.timeout):
            await request.wait_disconnect()
    except TimeoutError:
        raise NoResponse("the server did not respond in time") from None
    raise Disconnected


async def _send_body(connection: ServerConnection, request: Request, rules: Rules) -> None:
    if "content-length" not in request.headers and "transfer-encoding" not in request.headers:
        return
    is_chunked = "content-length" not in request.headers
    size = 0
    async for block in request.blocks():
        size += len(block)
        if rules.max_bytes is not None and size > rules.max_bytes:
            raise BodyTooLarge(rules.max_bytes)
        try:
            async with asyncio.timeout(rules.timeout):
                await connection.write(b"%x\r\n%b\r\n" % (len(block), block) if is_chunked else block)
        except TimeoutError:
            raise NoResponse("the server did not read the request in time") from None
    if is_chunked:
        await connection.write(b"0\r\n\r\n")


async def _read_head(connection: ServerConnection) -> ServerResponse:
    """Read the head of the response. Raises NoResponse."""
    response = ServerResponse()
    size = 0
    try:
        while not response.has_head:
            data = await connection.read()
            size += len(data)
            if not data or size > _MAX_HEAD + _BLOCK_SIZE:
                raise NoResponse(
                    "the server closed the connection before it sent a complete response head"
                    if not data
                    else "the head of the server's response is too long"
                )
            response.parser.feed_data(data)
    except httptools.HttpParserError as failure:
        raise NoResponse(str(failure)) from None
    except httptools.HttpParserUpgrade:
        raise NoResponse("the server switched to a protocol that was not requested") from None
    if response.status >= 600:
        raise NoResponse(f"the response has the invalid status {response.status}")
    return response


async def _parts(connection: ServerConnection, response: ServerResponse) -> AsyncGenerator[bytes]:
    """Yield the response's body in blocks. Raises NoResponse if the body is truncated, so that the client can
    detect this."""
    try:
        while True:
            if body := response.blocks():
                yield body
            if response.is_done:
                return
            data = await connection.read()
            if not data:
                if any(name in _SIZED for name, _ in response.headers):
                    raise NoResponse("the server closed the connection before the end of its response")
                return
            response.parser.feed_data(data)
    finally:
        connection.close()


def _head(request: Request, rules: Rules) -> bytes:
    lines = [f"{request.method} {_target(request)} HTTP/1.1".encode("latin-1")]
    lines += [b"%b: %b" % pair for pair in _request_headers(request.scope, rules)]
    if (length := request.headers.get("content-length")) is not None:
        if rules.max_bytes is not None and int(length) > rules.max_bytes:
            raise BodyTooLarge(rules.max_bytes)
        lines.append(f"content-length: {length}".encode("latin-1"))
    elif "transfer-encoding" in request.headers:
        lines.append(b"transfer-encoding: chunked")
    return b"\r\n".join([*lines, b"connection: close", b"", b""])


def _target(request: Request) -> str:
    return request.raw_path + (f"?{request.raw_query}" if request.raw_query else "")


def _request_headers(scope: Scope, rules: Rules) -> Headers:
    return rules.request_headers(
        [pair for pair in scope["headers"] if pair[0].decode("latin-1") not in _HOP_BY_HOP]
    )


# --- WebSockets ---


async def relay(
    connection: ServerConnection,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    rules: Rules,
    end_conditions: Sequence[Any],
) -> None:
    """Relay a client's WebSocket until the client or the server closes it, or one of `end_conditions`
    returns. Raises NoResponse if the server did not accept the WebSocket."""
    # Imported for the first WebSocket, since most services never have one.
    from websockets.client import ClientProtocol
    from websockets.typing import Subprotocol
    from websockets.uri import parse_uri

    request = Request(scope, receive)
    offered = request.headers.get("sec-websocket-protocol", "").split(",")
    protocol = ClientProtocol(
        parse_uri("ws://port/"),
        subprotocols=[Subprotocol(name.strip()) for name in offered if name.strip()] or None,
        max_size=_MAX_MESSAGE,
    )
    server = _ServerSide(connection, protocol)
    try:
        await server.shake_hands(request, rules)
        await send({"type": "websocket.accept", "subprotocol": protocol.subprotocol})
        await first_of(
            server.to_client(send), server.from_client(receive), *(wait() for wait in end_conditions)
        )
        # Ignore the exception that `send` raises if the client has disconnected.
        with contextlib.suppress(Exception):
            await send({"type": "websocket.close", "code": server.code})
    finally:
        connection.close()


class _ServerSide:
    """The server's side of a WebSocket."""

    def __init__(self, connection: ServerConnection, protocol: "ClientProtocol") -> None:
        self._connection = connection
        self._protocol = protocol
        self._pieces: list[bytes] = []
        self._is_text = False
        #: Frames that arrived together with the handshake.
        self._early: Sequence[Frame] = []
        #: The close code to send to the client: the server's code, or 1001 without one.
        self.code = 1001

    async def shake_hands(self, request: Request, rules: Rules) -> None:
        """Open the client's WebSocket at the server. Raises NoResponse."""
        handshake = self._protocol.connect()
        handshake.path = _target(request)
        del handshake.headers["Host"]
        for name, value in _request_headers(request.scope, rules):
            if not name.startswith(b"sec-websocket-"):
                handshake.headers[name.decode("latin-1")] = value.decode("latin-1")
        self._protocol.send_request(handshake)
        try:
            async with asyncio.timeout(rules.timeout):
                while self._protocol.state.name == "CONNECTING":
                    await self._flush()
                    if not await self._receive():
                        break
        except TimeoutError:
            raise NoResponse("the server did not respond in time") from None
        if self._protocol.state.name != "OPEN":
            raise NoResponse(str(self._protocol.handshake_exc or "the server closed the connection"))
        self._early = cast("list[Frame]", self._protocol.events_received()[1:])

    async def to_client(self, send: Send) -> None:
        """Forward the server's messages until the server closes the WebSocket."""
        frames: Sequence[Frame] = self._early
        while True:
            for frame in frames:
                await self._pass(frame, send)
            await self._flush()
            if self._protocol.close_expected() or not await self._receive():
                break
            frames = cast("list[Frame]", self._protocol.events_received())
        if (closed := self._protocol.close_rcvd) is not None:
            self.code = _NORMAL if closed.code == _NO_CODE else closed.code

    async def from_client(self, receive: Receive) -> None:
        """Forward the client's messages until the client disconnects."""
        while (message := await receive())["type"] != "websocket.disconnect":
            if (data := message.get("bytes")) is not None:
                self._protocol.send_binary(data)
            else:
                self._protocol.send_text((message.get("text") or "").encode())
            await self._flush()
        self._protocol.send_close(1001)
        await self._flush()

    async def _pass(self, frame: "Frame", send: Send) -> None:
        if frame.opcode.name in ("PING", "PONG", "CLOSE"):
            return
        if frame.opcode.name != "CONT":
            self._is_text = frame.opcode.name == "TEXT"
        self._pieces.append(bytes(frame.data))
        if not frame.fin:
            return
        whole = b"".join(self._pieces)
        self._pieces.clear()
        message = {"text": whole.decode("utf-8", "replace")} if self._is_text else {"bytes": whole}
        await send({"type": "websocket.send", **message})

    async def _receive(self) -> bool:
        data = await self._connection.read()
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        return bool(data)

    async def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                await self._connection.write(data)
