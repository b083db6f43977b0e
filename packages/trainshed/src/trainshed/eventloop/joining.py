"""Joins two connections into one: whatever arrives at one end is written to the other, in both directions,
until both have ended. It does not look at the bytes.

Bytes that an end cannot take yet wait in the kernel, not here. `StreamLine` is one connection alone.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final


class End(asyncio.Protocol):
    """One end of a relayed connection. It writes what arrives to the other end, and reads no more while that
    one is slow. It passes on the end of a stream; a failure on one side ends the other side."""

    transport: asyncio.Transport

    def __init__(
        self,
        made: Callable[["End"], None],
        everyone: set[asyncio.Transport],
        heard: Callable[["End"], None] | None = None,
        left: Callable[["End"], None] | None = None,
    ) -> None:
        """`made` is called once this end is open, and must see to it that another one joins; `heard` is
        called when bytes arrive, and `left` when the end is closed. `everyone` holds the transports of all
        open ends."""
        self._heard = heard
        self._left = left
        self._made = made
        self._everyone = everyone
        self._other: End | None = None
        self._early: list[bytes] = []
        self._ended = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._everyone.add(transport)
        self._made(self)

    def join(self, newer: "End") -> None:
        """Relay between this end and `newer`, which was opened for it."""
        self._other, newer._other = newer, self
        if self.transport.is_closing():
            newer.transport.abort()
            return
        for data in self._early:
            newer.transport.write(data)
        self._early.clear()
        if self._ended:
            newer.transport.write_eof()
        else:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._heard is not None:
            self._heard(self)
        if self._other is None:
            # There is no other end yet: keep what came, and let the rest wait in the kernel.
            self._early.append(data)
            self.transport.pause_reading()
        elif not self._other.transport.is_closing():
            self._other.transport.write(data)

    def eof_received(self) -> bool:
        self._ended = True
        other = self._other
        if other is None or other.transport.is_closing():
            return True
        if other._ended:
            # Both streams have ended: each side closes once it has written what it still holds.
            other.transport.close()
            return False
        other.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        if self._other is not None and not self._other.transport.is_closing():
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and not self._other.transport.is_closing():
            self._other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._everyone.discard(self.transport)
        if self._left is not None:
            self._left(self)
        if self._other is not None and not self._other.transport.is_closing():
            if exc is None:
                self._other.transport.close()
            else:
                self._other.transport.abort()


_READ: Final = 1 << 16


class StreamLine:
    """A connection that is read and written in pieces, and never fails: its end is an empty piece."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        try:
            return await self._reader.read(_READ)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        # `read` reports the end; uvloop raises either.
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(data)
            await self._writer.drain()

    async def end_input(self) -> None:
        """Say that nothing more will be written."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()
