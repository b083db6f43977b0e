"""Forwards requests and WebSockets of browsers to another server, and its answers back.

Only the headers that a `Rules` allows pass in either direction.
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
    Streamed,
)

if TYPE_CHECKING:
    from websockets.client import ClientProtocol
    from websockets.frames import Frame

_BLOCK_SIZE: Final = 1 << 16
_MAX_HEAD: Final = 1 << 16
ANSWER_TIMEOUT: Final = 120.0
"""Seconds."""
_MAX_MESSAGE: Final = 64 << 20
"""Maximum size of a WebSocket message from the server, such as an output of a notebook."""
_NORMAL: Final = 1000
_NO_CODE: Final = 1005
"""Represents a close without a code. It must not be sent."""
_HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
        *("content-length", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    }
)
"""Headers that are never forwarded, since they apply to one connection. Forwarding them would allow request
smuggling."""

_SIZED: Final = (b"content-length", b"transfer-encoding")


class NoAnswer(Exception):
    """The server has ended, does not answer in time, or its answer is not HTTP."""


class Line(Protocol):
    """A connection to the server. Its exceptions end the forwarding."""

    async def read(self) -> bytes:
        """Return the next bytes; b"" at the end."""
        ...

    async def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Rules(Struct, frozen=True):
    """Filters and limits of the forwarding. Hop-by-hop headers never pass."""

    #: Returns the forwarded headers of a request.
    request_headers: Callable[[Headers], Headers]
    #: Returns the forwarded headers of an answer.
    answer_headers: Callable[[Headers], Headers]
    #: Maximum size of a request body in bytes; None = no limit.
    max_bytes: int | None = None
    #: Timeout in seconds for the head of the answer after the request, and for each block of the request;
    #: None = no timeout.
    timeout: float | None = ANSWER_TIMEOUT


class Answer:
    """Collects the parser's callbacks. Header names are in lower case."""

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
            self.headers.clear()  # An interim response; the final one follows.

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
    line: Line, request: Request, rules: Rules, closing: asyncio.Event, lapse: Lapse | None = None
) -> Streamed:
    """Forward a request and return the answer, with its body still to come.

    The answer may arrive before the end of the request. The line is closed after it, and when `lapse` returns
    (see `Streamed`). Raises NoAnswer, BodyTooLarge, Disconnected.
    """
    try:
        await line.write(_head(request, rules))
        works = [_read_head(line), _send(line, request, rules), *([_lapse(lapse)] if lapse else [])]
        tasks = await first_of(*works)
        answer = next(task for task in tasks if not task.cancelled()).result()
    except BaseException:
        line.close()
        raise
    streamed = Streamed(_parts(line, answer), closing, b"", lapse)
    streamed.status = answer.status
    answer.is_done |= request.method == "HEAD"
    headers = [
        pair
        for pair in answer.headers
        if pair[0] == b"content-length" or pair[0].decode("latin-1") not in _HOP_BY_HOP
    ]
    streamed.headers = list(rules.answer_headers(headers))
    return streamed


async def _lapse(lapse: Lapse) -> NoReturn:
    await lapse()
    raise NoAnswer("the permission for the request was revoked")


async def exchange(line: Line, request: bytes, seconds: float, max_bytes: int) -> tuple[int, bytes]:
    """Send the service's own request, and return status and body of the answer.

    Reads at most `max_bytes` and one block of the body, and closes the line. Raises NoAnswer, also if the
    answer is incomplete after `seconds`.
    """
    body = b""
    try:
        async with asyncio.timeout(seconds):
            await line.write(request)
            answer = await _read_head(line)
            async for block in _parts(line, answer):
                body += block
                if len(body) > max_bytes:
                    break
    except (TimeoutError, httptools.HttpParserError) as failure:
        raise NoAnswer(str(failure) or f"no complete answer within {seconds:g} s") from None
    finally:
        line.close()
    return answer.status, body


async def _send(line: Line, request: Request, rules: Rules) -> NoReturn:
    """Send the body, then wait until the client disconnects or the timeout expires. Raises NoAnswer,
    BodyTooLarge, Disconnected."""
    await _send_body(line, request, rules)
    try:
        async with asyncio.timeout(rules.timeout):
            await request.wait_disconnect()
    except TimeoutError:
        raise NoAnswer("it does not answer") from None
    raise Disconnected


async def _send_body(line: Line, request: Request, rules: Rules) -> None:
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
                await line.write(b"%x\r\n%b\r\n" % (len(block), block) if is_chunked else block)
        except TimeoutError:
            raise NoAnswer("it does not read the request") from None
    if is_chunked:
        await line.write(b"0\r\n\r\n")


async def _read_head(line: Line) -> Answer:
    """Return the answer after its head. Raises NoAnswer."""
    answer = Answer()
    size = 0
    try:
        while not answer.has_head:
            data = await line.read()
            size += len(data)
            if not data or size > _MAX_HEAD + _BLOCK_SIZE:
                raise NoAnswer("it has ended" if not data else "the head of its answer is too long")
            answer.parser.feed_data(data)
    except httptools.HttpParserError as failure:
        raise NoAnswer(str(failure)) from None
    except httptools.HttpParserUpgrade:
        raise NoAnswer("it changes the protocol unasked") from None
    if answer.status >= 600:
        raise NoAnswer(f"its status is {answer.status}")
    return answer


async def _parts(line: Line, answer: Answer) -> AsyncGenerator[bytes]:
    """Yield the answer's body in blocks. Raises NoAnswer if it is truncated, so that the client can detect
    that."""
    try:
        while True:
            if body := answer.blocks():
                yield body
            if answer.is_done:
                return
            data = await line.read()
            if not data:
                if any(name in _SIZED for name, _ in answer.headers):
                    raise NoAnswer("it ended in the middle of its answer")
                return
            answer.parser.feed_data(data)
    finally:
        line.close()


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
    line: Line, scope: Scope, receive: Receive, send: Send, *, rules: Rules, over: Sequence[Any]
) -> None:
    """Relay a client's WebSocket until either side closes it or one of `over` returns. Raises NoAnswer if
    nothing was accepted yet."""
    # Imported with the first WebSocket, since most services never have one.
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
    server = _ServerSide(line, protocol)
    try:
        await server.shake_hands(request, rules)
        await send({"type": "websocket.accept", "subprotocol": protocol.subprotocol})
        await first_of(
            server.to_client(send), server.from_client(receive), *(wait() for wait in over)
        )
        # This is not sent if the client has disconnected.
        with contextlib.suppress(Exception):
            await send({"type": "websocket.close", "code": server.code})
    finally:
        line.close()


class _ServerSide:
    """The server's side of a WebSocket."""

    def __init__(self, line: Line, protocol: "ClientProtocol") -> None:
        self._line = line
        self._protocol = protocol
        self._pieces: list[bytes] = []
        self._is_text = False
        #: Frames that arrived together with the handshake.
        self._early: Sequence[Frame] = []
        #: The close code of the server.
        self.code = 1001

    async def shake_hands(self, request: Request, rules: Rules) -> None:
        """Request the client's WebSocket from the server. Raises NoAnswer."""
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
            raise NoAnswer("it does not answer") from None
        if self._protocol.state.name != "OPEN":
            raise NoAnswer(str(self._protocol.handshake_exc or "it has ended"))
        self._early = cast("list[Frame]", self._protocol.events_received()[1:])

    async def to_client(self, send: Send) -> None:
        """Forward the server's messages until it closes."""
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
        """Forward the client's messages until it disconnects."""
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
        data = await self._line.read()
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        return bool(data)

    async def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                await self._line.write(data)
