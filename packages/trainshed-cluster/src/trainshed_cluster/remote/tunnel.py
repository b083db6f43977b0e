"""A tunnel is a two-way stream of bytes inside a TLS connection whose directions end separately, since
asyncio's TLS ends both at once.

Bytes travel in pieces, each preceded by its length; an empty piece ends the direction. An end without it
counts as a lost connection.
"""

import asyncio
from typing import Any, Final

_HEAD: Final = 4
_PIECE: Final = 1 << 20
"""Bytes of a piece at most."""


class Tunnel(asyncio.Protocol):
    """The protocol of the connection below, and the stream as a transport for the protocol above."""

    def __init__(self, above: asyncio.Protocol) -> None:
        self.stream = Stream(self)
        #: The protocol that gets the received bytes.
        self.above = above
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._below: asyncio.Transport | None = None
        #: Bytes that are missing of the current piece, and the received part of the next one's length.
        self._left = 0
        self._head = b""
        self._has_said_all = False
        self._has_heard_all = False
        self._is_lost = False

    async def closed(self) -> None:
        """Wait until the connection has ended, however it did."""
        await asyncio.shield(self._closed)

    # As the protocol of the connection

    def connection_made(self, transport: Any) -> None:
        self._below = transport
        self.above.connection_made(self.stream)

    def data_received(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._has_heard_all and not self._is_lost:
            if self._left:
                part, view = view[: self._left], view[self._left :]
                self._left -= len(part)
                self.above.data_received(bytes(part))
                continue
            missing = _HEAD - len(self._head)
            self._head += view[:missing]
            view = view[missing:]
            if len(self._head) == _HEAD:
                self._left, self._head = int.from_bytes(self._head), b""
                if self._left == 0:
                    self._hear_all()
                elif self._left > _PIECE:
                    self._lose(ConnectionResetError("a piece that is too long"))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.above.pause_writing()

    def resume_writing(self) -> None:
        self.above.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        if self._is_lost:
            return
        self._is_lost = True
        if exc is None and not self._has_heard_all and not self.stream.is_ended_here:
            exc = ConnectionResetError("The connection was cut.")
        self.above.connection_lost(exc)

    # What the stream does

    @property
    def below(self) -> asyncio.Transport:
        """The connection."""
        assert self._below is not None, "it is not connected"
        return self._below

    def say(self, data: Any) -> None:
        """Send bytes, in pieces."""
        view = memoryview(data)
        if self._has_said_all or self.below.is_closing():
            return
        for begin in range(0, len(view), _PIECE):
            piece = view[begin : begin + _PIECE]
            self.below.write(b"".join((len(piece).to_bytes(_HEAD), piece)))

    def say_all(self) -> None:
        """Say that nothing more follows. May be called twice."""
        if not self._has_said_all:
            if not self.below.is_closing():
                self.below.write(bytes(_HEAD))
            self._has_said_all = True

    def _hear_all(self) -> None:
        self._has_heard_all = True
        if not self.above.eof_received():
            self.stream.close()

    def _lose(self, cause: Exception) -> None:
        self._is_lost = True
        self.below.abort()
        self.above.connection_lost(cause)


class Stream(asyncio.Transport):
    """The stream as a transport for its user."""

    def __init__(self, tunnel: Tunnel) -> None:
        super().__init__()
        self._tunnel = tunnel
        #: Ended by `close` or `abort` on this side.
        self.is_ended_here = False

    def write(self, data: Any) -> None:
        self._tunnel.say(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._tunnel.say_all()

    def close(self) -> None:
        """Say that nothing more follows, and close once everything is written."""
        self.is_ended_here = True
        self._tunnel.say_all()
        # As in `Channel.close`.
        if not self.is_closing():
            self._tunnel.below.close()

    def abort(self) -> None:
        """Drop the connection, which the other side sees as a loss."""
        self.is_ended_here = True
        self._tunnel.below.abort()

    def is_closing(self) -> bool:
        return self._tunnel.below.is_closing()

    def pause_reading(self) -> None:
        if not self.is_closing():
            self._tunnel.below.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_closing():
            self._tunnel.below.resume_reading()

    def is_reading(self) -> bool:
        return self._tunnel.below.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._tunnel.below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._tunnel.below.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # asyncio would conclude that both directions end at once.
        return default if name == "sslcontext" else self._tunnel.below.get_extra_info(name, default)

    def get_protocol(self) -> Any:
        return self._tunnel.above

    def set_protocol(self, protocol: Any) -> None:
        self._tunnel.above = protocol


def streams() -> tuple[Tunnel, asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a tunnel with asyncio's reader and writer of its stream, which end separately."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 18, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    tunnel = Tunnel(protocol)
    return tunnel, reader, asyncio.StreamWriter(tunnel.stream, protocol, reader, loop)
