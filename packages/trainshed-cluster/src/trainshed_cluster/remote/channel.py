"""A channel carries one ordered conversation over a connection: messages in MessagePack, each preceded by its
length.

It does not know what they mean. Messages that the other side does not take wait at the sender; those that are
not received yet wait in the kernel, and a few of them in the connection's buffers here.

Whether the other side is out of reach or hangs is for those to find out who converse (`lease.beat`).
"""

import asyncio
from typing import Any, Final, Generic, TypeVar

import msgspec

from trainshed.eventloop.background import consume_exception, joined
from trainshed_cluster.remote.greeting import Streams

Sent = TypeVar("Sent")
Received = TypeVar("Received")

LONGEST: Final = 8 << 20
"""Bytes of a message. One that says it is longer ends the conversation."""
_HEAD: Final = 4
_ROOM: Final = 512 << 10
"""Bytes that wait here to be sent, beyond which `send` waits."""


class ChannelClosed(ConnectionError):
    """The conversation has ended. The message says why; what ended it is the cause."""


class MessageTooLong(ValueError):
    """The message has more than `LONGEST` bytes. Nothing of it was sent."""


class Channel(Generic[Sent, Received]):
    """One end of the conversation. It belongs to one event loop. One task receives; any may send, and
    messages arrive in the order in which `send` took them."""

    def __init__(self, streams: Streams, received: Any, peer: str = "") -> None:
        """`received`: the type of what comes, a Struct or a union of tagged ones. `peer`: as whom the other
        side was recognised; "" = it is the service."""
        self.peer = peer
        self._reader, self._writer = streams
        self._writer.transport.set_write_buffer_limits(high=_ROOM)
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(received)
        self._encoder = msgspec.msgpack.Encoder()
        #: Why it ended; None = it has not, or one of the two has closed it.
        self.cause: BaseException | None = None
        #: Bytes of the message whose length was read already.
        self._coming: int | None = None
        #: Of senders, so that one with many messages does not starve the others.
        self._turn = asyncio.Lock()
        self._gone = joined(self._writer.wait_closed())
        self._gone.add_done_callback(consume_exception)

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can be sent. Messages that came before may still be received."""
        return self._writer.is_closing()

    async def closed(self) -> None:
        """Wait until the connection is closed. That it is lost is not noticed while many messages wait to be
        received."""
        await asyncio.wait((self._gone,))

    async def send(self, message: Sent) -> None:
        """Send a message as soon as there is room. If it is cancelled, nothing was sent. A return does not
        mean that the message has arrived. Raises ChannelClosed, MessageTooLong."""
        frame = self._framed(message)
        async with self._turn:
            try:
                await self._writer.drain()
            except OSError as error:
                raise self._ended(error) from error
            self._write(frame)

    def post(self, message: Sent) -> None:
        """Send a message without waiting, for those that are few and small. Raises ChannelClosed,
        MessageTooLong."""
        self._write(self._framed(message))

    async def receive(self) -> Received:
        """Return the next message. May be cancelled, and loses nothing. Raises ChannelClosed."""
        if self._coming is None:
            self._coming = int.from_bytes(await self._read(_HEAD))
        if self._coming > LONGEST:
            text = f"a message came that says to have {self._coming} bytes: more than {LONGEST}"
            raise self._end(ValueError(text))
        frame = await self._read(self._coming)
        self._coming = None
        try:
            return self._decoder.decode(frame)
        except (ValueError, RecursionError) as error:
            raise self._end(ValueError(f"what came is no message: {error}")) from error

    async def _read(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as end:
            is_torn = self._coming is not None or end.partial
            raise self._end(
                ConnectionResetError("in the middle of a message") if is_torn else None
            ) from None
        except OSError as error:
            raise self._end(error) from error

    def close(self) -> None:
        """Close it without waiting: unsent messages are still sent if the other side takes them soon. May be
        called twice."""
        # asyncio's TLS that was closed twice cannot be aborted any more.
        if not self._writer.is_closing():
            self._writer.close()

    def give_up(self) -> None:
        """Close it at once, because the other side is out of reach or hangs: the cause is a TimeoutError."""
        self._end(TimeoutError("nothing was heard for too long"))

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
        if self.is_closed:
            raise self._ended()
        self._writer.write(frame)

    def _end(self, cause: BaseException | None) -> ChannelClosed:
        """Cut the connection, and return what to raise."""
        ended = self._ended(cause)
        self._writer.transport.abort()
        return ended

    def _ended(self, cause: BaseException | None = None) -> ChannelClosed:
        self.cause = self.cause or cause
        why = f": {self.cause}" if self.cause is not None else ""
        return ChannelClosed(f"The connection has ended{why}.")
