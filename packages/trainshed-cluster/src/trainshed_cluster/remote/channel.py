"""Exchanges messages in order over one connection.

A message is encoded in MessagePack, and its length precedes it. While the peer does not read, the sender's
messages wait at the sender. Unread received messages wait in the kernel, and a few in the connection's
buffers. The callers detect an unreachable peer by heartbeats (`lease.beat_interval`).
"""

import asyncio
from typing import Any, Final, Generic, TypeVar

import msgspec

from trainshed.eventloop.background import consume_exception, joined
from trainshed_cluster.remote.greeting import Streams

Sent = TypeVar("Sent")
Received = TypeVar("Received")

MAX_MESSAGE_BYTES: Final = 8 << 20
"""Maximum size of a message in bytes. If a longer message arrives, the conversation ends."""
_LENGTH_BYTES: Final = 4
_MAX_BUFFER: Final = 512 << 10
"""Number of unsent bytes above which `send` waits."""


class ChannelClosed(ConnectionError):
    """The channel's connection has ended. The exception's message and cause contain the reason."""


class MessageTooLong(ValueError):
    """The message is longer than `MAX_MESSAGE_BYTES`, so nothing was sent."""


class Channel(Generic[Sent, Received]):
    """One side of the conversation, the connection for messages between an agent and the service. A channel
    belongs to one event loop. Only one task may receive. Any task may send, and messages arrive in the order
    of their `send` calls."""

    def __init__(self, streams: Streams, received: Any, peer: str = "") -> None:
        """Wrap a connection.

        Args:
            received: Type of received messages: a Struct, or a union of tagged Structs.
            peer: Authenticated name of the other side; "" = the service, in an agent's channel.
        """
        self.peer = peer
        self._reader, self._writer = streams
        self._writer.transport.set_write_buffer_limits(high=_MAX_BUFFER)
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(received)
        self._encoder = msgspec.msgpack.Encoder()
        #: The error that ended the conversation; None = the conversation is open, or was closed normally.
        self.cause: BaseException | None = None
        #: Size in bytes of the message that is being received.
        self._incoming_length: int | None = None
        #: Held by the task that sends, so that a task with many messages does not starve other tasks.
        self._turn = asyncio.Lock()
        self._closing = joined(self._writer.wait_closed())
        self._closing.add_done_callback(consume_exception)

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent anymore. Earlier messages may still be received."""
        return self._writer.is_closing()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed. While many received messages are unread, this does not detect
        a lost connection."""
        await asyncio.wait((self._closing,))

    async def send(self, message: Sent) -> None:
        """Send a message. Waits until the buffer has space. If this call is cancelled, nothing is sent. A
        return does not prove that the peer has received the message. Raises ChannelClosed or MessageTooLong.
        """
        frame = self._frame(message)
        async with self._turn:
            try:
                await self._writer.drain()
            except OSError as error:
                raise self._closed_error(error) from error
            self._write(frame)

    def post(self, message: Sent) -> None:
        """Send a small message without waiting. Raises ChannelClosed or MessageTooLong."""
        self._write(self._frame(message))

    async def receive(self) -> Received:
        """Return the next message. If this call is cancelled, no message is lost. Raises ChannelClosed if the
        conversation has ended."""
        if self._incoming_length is None:
            self._incoming_length = int.from_bytes(await self._read(_LENGTH_BYTES))
        if self._incoming_length > MAX_MESSAGE_BYTES:
            text = f"a message of {self._incoming_length} bytes exceeds the limit of {MAX_MESSAGE_BYTES}"
            raise self._abort(ValueError(text))
        frame = await self._read(self._incoming_length)
        self._incoming_length = None
        try:
            return self._decoder.decode(frame)
        except (ValueError, RecursionError) as error:
            raise self._abort(ValueError(f"received an invalid message: {error}")) from error

    async def _read(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as end:
            is_torn = self._incoming_length is not None or end.partial
            raise self._abort(
                ConnectionResetError("the connection was lost in the middle of a message")
                if is_torn
                else None
            ) from None
        except OSError as error:
            raise self._abort(error) from error

    def close(self) -> None:
        """Close the channel without waiting. Pending messages are still sent if the peer reads them soon.
        Further calls have no effect."""
        # asyncio cannot abort a TLS transport that was closed twice, so close it only once.
        if not self._writer.is_closing():
            self._writer.close()

    def give_up(self) -> None:
        """Close the channel at once, because the peer is unreachable or hangs. `cause` is then a
        TimeoutError."""
        self._abort(TimeoutError("the peer did not respond in time"))

    def _frame(self, message: Sent) -> bytearray:
        frame = bytearray(_LENGTH_BYTES)
        self._encoder.encode_into(message, frame, _LENGTH_BYTES)
        length = len(frame) - _LENGTH_BYTES
        if length > MAX_MESSAGE_BYTES:
            raise MessageTooLong(
                f"the message {type(message).__name__} has {length} bytes; the limit is {MAX_MESSAGE_BYTES}"
            )
        frame[:_LENGTH_BYTES] = length.to_bytes(_LENGTH_BYTES)
        return frame

    def _write(self, frame: bytearray) -> None:
        if self.is_closed:
            raise self._closed_error()
        self._writer.write(frame)

    def _abort(self, cause: BaseException | None) -> ChannelClosed:
        """Abort the connection, and return the exception for the caller to raise."""
        ended = self._closed_error(cause)
        self._writer.transport.abort()
        return ended

    def _closed_error(self, cause: BaseException | None = None) -> ChannelClosed:
        self.cause = self.cause or cause
        why = f": {self.cause}" if self.cause is not None else ""
        return ChannelClosed(f"The connection has ended{why}.")
