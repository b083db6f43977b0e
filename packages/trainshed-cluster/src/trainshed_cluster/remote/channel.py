"""A channel carries one ordered conversation over a connection: messages in MessagePack, each preceded by its
length.

It does not know what they mean. Messages that the other side does not take wait at the sender; those that are
not received yet wait in the kernel, and a few of them here.

Whether the other side is out of reach or hangs is for those to find out who converse (`lease.beat`).
"""

import asyncio
from collections import deque
from typing import Any, Final, Generic, TypeVar

import msgspec

Sent = TypeVar("Sent")
Received = TypeVar("Received")

LONGEST: Final = 8 << 20
"""Bytes of a message. One that says it is longer ends the conversation."""
_HEAD: Final = 4
_ENOUGH: Final = 1 << 20
"""Bytes that wait here to be received, beyond which no more is read."""
_ROOM: Final = 512 << 10
"""Bytes that wait here to be sent, beyond which `send` waits."""


NO_MESSAGE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises of bytes that are no message: RecursionError if they nest too deep."""


class ChannelClosed(ConnectionError):
    """The conversation has ended. The message says why; what ended it is the cause."""


class MessageTooLong(ValueError):
    """The message has more than `LONGEST` bytes. Nothing of it was sent."""


class Channel(asyncio.Protocol, Generic[Sent, Received]):
    """One end of the conversation. It belongs to one event loop; only the transport calls its protocol
    methods. One task receives; any may send, and messages arrive in the order in which `send` took them."""

    def __init__(self, received: Any, peer: str = "") -> None:
        """`received`: the type of what comes, a Struct or a union of tagged ones. `peer`: as whom the other
        side was recognised; "" = it is the service."""
        self.peer = peer
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(received)
        self._encoder = msgspec.msgpack.Encoder()
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.get_running_loop().create_future()
        #: Why it ended; None = it has not, or one of the two has closed it.
        self.cause: BaseException | None = None
        #: Bytes received of the next messages.
        self._coming = bytearray()
        self._frames: deque[bytes] = deque()
        self._waiting = 0
        self._is_held = False
        #: Set when a message has come, or the end.
        self._arrived = asyncio.Event()
        #: Set while the transport takes more, and after the end.
        self._room = asyncio.Event()
        self._room.set()
        #: Of senders, so that one with many messages does not starve the others.
        self._turn = asyncio.Lock()

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can be sent. Messages that came before may still be received."""
        return self._closed.done()

    @property
    def waiting(self) -> int:
        """Bytes of complete messages that were not received yet."""
        return self._waiting

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def info(self, name: str) -> Any:
        """Return a fact about the connection (`asyncio.BaseTransport.get_extra_info`)."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    async def closed(self) -> None:
        """Wait until it is closed. A lost connection is not noticed while many messages wait to be
        received."""
        await asyncio.shield(self._closed)

    async def send(self, message: Sent) -> None:
        """Send a message as soon as there is room. If it is cancelled, nothing was sent. A return does not
        mean that the message has arrived. Raises ChannelClosed, MessageTooLong."""
        frame = self._framed(message)
        async with self._turn:
            await self._room.wait()
            self._write(frame)

    def post(self, message: Sent) -> None:
        """Send a message without waiting, for those that are few and small. Raises ChannelClosed,
        MessageTooLong."""
        self._write(self._framed(message))

    async def receive(self) -> Received:
        """Return the next message; those that came before the end are returned first. May be cancelled.
        Raises ChannelClosed."""
        while not self._frames:
            if self.is_closed:
                raise self._ended()
            self._arrived.clear()
            await self._arrived.wait()
        frame = self._frames.popleft()
        self._waiting -= _HEAD + len(frame)
        if self._is_held and self._waiting <= _ENOUGH // 2:
            self._is_held = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
        try:
            return self._decoder.decode(frame)
        except NO_MESSAGE as error:
            self._end(error)
            self._frames.clear()
            raise ChannelClosed(f"What came is no message: {error}.") from error

    def close(self) -> None:
        """Close it without waiting: unsent messages are still sent if the other side takes them soon. May be
        called twice."""
        # asyncio's TLS that was closed twice cannot be aborted any more.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
        self._finish(None)

    def give_up(self) -> None:
        """Close it at once, because the other side is out of reach or hangs: the cause is a TimeoutError."""
        self._end(TimeoutError("nothing was heard for too long"))

    # As the connection's protocol

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=_ROOM)

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        self._coming += data
        begin, size, longest = 0, len(self._coming), 0
        with memoryview(self._coming) as view:
            while size - begin >= _HEAD:
                longest = int.from_bytes(view[begin : begin + _HEAD])
                end = begin + _HEAD + longest
                if longest > LONGEST or end > size:
                    break
                self._frames.append(bytes(view[begin + _HEAD : end]))
                self._waiting += _HEAD + longest
                begin = end
        del self._coming[:begin]
        if longest > LONGEST:
            text = f"A message came that says to have {longest} bytes: more than {LONGEST}."
            self._end(ChannelClosed(text))
        if self._waiting > _ENOUGH and not self._is_held and self._transport is not None:
            self._is_held = True
            self._transport.pause_reading()
        if self._frames:
            self._arrived.set()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self._coming:
            exc = ConnectionResetError("in the middle of a message")
        self._finish(exc)

    def _framed(self, message: Sent) -> bytearray:
        frame = bytearray(_HEAD)
        self._encoder.encode_into(message, frame, _HEAD)
        length = len(frame) - _HEAD
        if length > LONGEST:
            raise MessageTooLong(
                f"{type(message).__name__} has {length} bytes: more than {LONGEST}"
            )
        frame[:_HEAD] = length.to_bytes(_HEAD)
        return frame

    def _write(self, frame: bytearray) -> None:
        if self.is_closed or self._transport is None or self._transport.is_closing():
            raise self._ended()
        self._transport.write(frame)

    def _end(self, cause: BaseException) -> None:
        self._finish(cause)
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, cause: BaseException | None) -> None:
        if self._closed.done():
            return
        self.cause = cause
        self._closed.set_result(None)
        self._coming.clear()
        self._arrived.set()
        self._room.set()

    def _ended(self) -> ChannelClosed:
        if isinstance(self.cause, ChannelClosed):
            return ChannelClosed(*self.cause.args)
        why = f": {self.cause}" if self.cause is not None else ""
        closed = ChannelClosed(f"The connection has ended{why}.")
        closed.__cause__ = self.cause
        return closed
