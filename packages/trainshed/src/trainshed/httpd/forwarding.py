"""Forwards browsers' requests and WebSockets to a server behind a line, and what that says back.

Only the headers of a `Rules` pass either way.
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

_READ: Final = 1 << 16
_LONGEST_HEAD: Final = 1 << 16
PATIENCE: Final = 120.0
"""Seconds that an answer may take."""
_LARGEST_MESSAGE: Final = 64 << 20
"""Bytes of a WebSocket's message from the server: an output of a notebook, say."""
_NORMAL: Final = 1000
_NONE: Final = 1005
"""Stands for a close without a code; nobody may send it."""
_OF_ONE_CONNECTION: Final = frozenset(
    {
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
        *("content-length", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    }
)
"""Headers that are never passed on: they are about one connection."""

_SIZED: Final = (b"content-length", b"transfer-encoding")


class NoAnswer(Exception):
    """The server has ended, does not answer in time, or its answer is not HTTP."""


class Line(Protocol):
    """A connection to the server. What its methods raise ends what is forwarded."""

    async def read(self) -> bytes:
        """Return the next bytes; b"" = there are no more."""
        ...

    async def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Rules(Struct, frozen=True):
    """What passes. Headers of single connections never do."""

    #: Returns the headers that the server is sent of those of a request.
    sent: Callable[[Headers], Headers]
    #: Returns those that a browser is sent of those of an answer.
    passed: Callable[[Headers], Headers]
    #: Most bytes of a request's body; None = any number.
    most: int | None = None
    #: Seconds for the head of an answer, once the request was sent, and for each block of that to be taken;
    #: None = any number.
    patience: float | None = PATIENCE


class Answer:
    """Collects what the HTTP parser reports to its callbacks; names of headers in small letters."""

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
            self.headers.clear()  # The answer itself is still to come.

    def on_body(self, block: bytes) -> None:
        if not self.is_done:
            self.body.append(block)

    def on_message_complete(self) -> None:
        self.is_done = self.has_head

    @property
    def status(self) -> int:
        return self.parser.get_status_code()

    def blocks(self) -> bytes:
        """Return what came of the body since the last call."""
        body = b"".join(self.body)
        self.body.clear()
        return body


async def forward(
    line: Line, request: Request, rules: Rules, closing: asyncio.Event, lapse: Lapse | None = None
) -> Streamed:
    """Forward a request; return the answer, whose body is still to come, and which may come before all of the
    request was sent. The line ends with it, and with `lapse`, as `Streamed` takes it. Raises NoAnswer,
    BodyTooLarge, Disconnected."""
    try:
        await line.write(_head(request, rules))
        works = [_answered(line), _send(line, request, rules), *([_lapsed(lapse)] if lapse else [])]
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
        if pair[0] == b"content-length" or pair[0].decode("latin-1") not in _OF_ONE_CONNECTION
    ]
    streamed.headers = list(rules.passed(headers))
    return streamed


async def _lapsed(lapse: Lapse) -> NoReturn:
    await lapse()
    raise NoAnswer("the right to it has ended")


async def answered(line: Line, request: bytes, patience: float, most: int) -> tuple[int, bytes]:
    """Send a request of the service itself, and return the status of the answer, and its body, of which no
    more is read than `most` bytes and a block. The line ends with it. Raises NoAnswer, also if it is not
    whole after `patience` seconds."""
    body = b""
    try:
        async with asyncio.timeout(patience):
            await line.write(request)
            answer = await _answered(line)
            async for block in _parts(line, answer):
                body += block
                if len(body) > most:
                    break
    except (TimeoutError, httptools.HttpParserError) as failure:
        raise NoAnswer(str(failure) or f"no whole answer within {patience:g} s") from None
    finally:
        line.close()
    return answer.status, body


async def _send(line: Line, request: Request, rules: Rules) -> NoReturn:
    """Send the body, and wait for what ends waiting for the answer. Raises NoAnswer, BodyTooLarge,
    Disconnected."""
    await _send_body(line, request, rules)
    try:
        async with asyncio.timeout(rules.patience):
            await request.left()
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
        if rules.most is not None and size > rules.most:
            raise BodyTooLarge(rules.most)
        try:
            async with asyncio.timeout(rules.patience):
                await line.write(b"%x\r\n%b\r\n" % (len(block), block) if is_chunked else block)
        except TimeoutError:
            raise NoAnswer("it does not take the request") from None
    if is_chunked:
        await line.write(b"0\r\n\r\n")


async def _answered(line: Line) -> Answer:
    """Wait for the head of the answer. Raises NoAnswer."""
    answer = Answer()
    size = 0
    try:
        while not answer.has_head:
            data = await line.read()
            size += len(data)
            if not data or size > _LONGEST_HEAD + _READ:
                raise NoAnswer("it has ended" if not data else "its head has no end")
            answer.parser.feed_data(data)
    except httptools.HttpParserError as failure:
        raise NoAnswer(str(failure)) from None
    except httptools.HttpParserUpgrade:
        raise NoAnswer("it changes the protocol unasked") from None
    if answer.status >= 600:
        raise NoAnswer(f"it says {answer.status}")
    return answer


async def _parts(line: Line, answer: Answer) -> AsyncGenerator[bytes]:
    """Yield the body as it comes. Raises NoAnswer if it is cut short, so that it is for the client, too."""
    try:
        while True:
            if body := answer.blocks():
                yield body
            if answer.is_done:
                return
            data = await line.read()
            if not data:
                if any(name in _SIZED for name, _ in answer.headers):
                    raise NoAnswer("it has ended amid its answer")
                return
            answer.parser.feed_data(data)
    finally:
        line.close()


def _head(request: Request, rules: Rules) -> bytes:
    lines = [f"{request.method} {_target(request)} HTTP/1.1".encode("latin-1")]
    lines += [b"%b: %b" % pair for pair in _sent(request.scope, rules)]
    if (length := request.headers.get("content-length")) is not None:
        if rules.most is not None and int(length) > rules.most:
            raise BodyTooLarge(rules.most)
        lines.append(f"content-length: {length}".encode("latin-1"))
    elif "transfer-encoding" in request.headers:
        lines.append(b"transfer-encoding: chunked")
    return b"\r\n".join([*lines, b"connection: close", b"", b""])


def _target(request: Request) -> str:
    return request.raw_path + (f"?{request.raw_query}" if request.raw_query else "")


def _sent(scope: Scope, rules: Rules) -> Headers:
    return rules.sent(
        [pair for pair in scope["headers"] if pair[0].decode("latin-1") not in _OF_ONE_CONNECTION]
    )


# --- WebSockets ---


async def relay(
    line: Line, scope: Scope, receive: Receive, send: Send, *, rules: Rules, over: Sequence[Any]
) -> None:
    """Carry a WebSocket, which the client has asked for, until either side ends it or one of `over`
    returns. Raises NoAnswer: nothing was accepted yet."""
    # Loaded with the first WebSocket: most services never have one.
    from websockets.client import ClientProtocol
    from websockets.typing import Subprotocol
    from websockets.uri import parse_uri

    request = Request(scope, receive)
    offered = request.headers.get("sec-websocket-protocol", "").split(",")
    protocol = ClientProtocol(
        parse_uri("ws://port/"),
        subprotocols=[Subprotocol(name.strip()) for name in offered if name.strip()] or None,
        max_size=_LARGEST_MESSAGE,
    )
    far = _FarSide(line, protocol)
    try:
        await far.shake_hands(request, rules)
        await send({"type": "websocket.accept", "subprotocol": protocol.subprotocol})
        await first_of(far.hear(send), far.say(receive), *(wait() for wait in over))
        # If the client itself is gone, this is not sent.
        with contextlib.suppress(Exception):
            await send({"type": "websocket.close", "code": far.code})
    finally:
        line.close()


class _FarSide:
    """The server's side of a WebSocket."""

    def __init__(self, line: Line, protocol: "ClientProtocol") -> None:
        self._line = line
        self._protocol = protocol
        self._pieces: list[bytes] = []
        self._is_text = False
        #: What came with the server's consent.
        self._early: Sequence[Frame] = []
        #: With which the server has closed it.
        self.code = 1001

    async def shake_hands(self, request: Request, rules: Rules) -> None:
        """Ask the server for the WebSocket that a browser has asked for. Raises NoAnswer."""
        wanted = self._protocol.connect()
        wanted.path = _target(request)
        del wanted.headers["Host"]
        for name, value in _sent(request.scope, rules):
            if not name.startswith(b"sec-websocket-"):
                wanted.headers[name.decode("latin-1")] = value.decode("latin-1")
        self._protocol.send_request(wanted)
        try:
            async with asyncio.timeout(rules.patience):
                while self._protocol.state.name == "CONNECTING":
                    await self._flush()
                    if not await self._receive():
                        break
        except TimeoutError:
            raise NoAnswer("it does not answer") from None
        if self._protocol.state.name != "OPEN":
            raise NoAnswer(str(self._protocol.handshake_exc or "it has ended"))
        self._early = cast("list[Frame]", self._protocol.events_received()[1:])

    async def hear(self, send: Send) -> None:
        """Pass on what the server says, until it has closed."""
        frames: Sequence[Frame] = self._early
        while True:
            for frame in frames:
                await self._pass(frame, send)
            await self._flush()
            if self._protocol.close_expected() or not await self._receive():
                break
            frames = cast("list[Frame]", self._protocol.events_received())
        if (closed := self._protocol.close_rcvd) is not None:
            self.code = _NORMAL if closed.code == _NONE else closed.code

    async def say(self, receive: Receive) -> None:
        """Pass on what the client says, until it has gone."""
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
