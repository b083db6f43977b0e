"""Two connections made one: what comes in at one end is written to the other, both ways, until both have said
all. Knows nothing of what is said.

What an end cannot take waits in the kernel, not here.
"""

import asyncio
from collections.abc import Callable
from typing import Any


class End(asyncio.Protocol):
    """One end of a relayed connection. What comes in is written to the other end; where that is slow, no more
    is read; an end of the stream goes on as one, and what went wrong on one side ends the other."""

    transport: asyncio.Transport

    def __init__(
        self,
        made: Callable[["End"], None],
        everyone: set[asyncio.Transport],
        heard: Callable[["End"], None] | None = None,
        left: Callable[["End"], None] | None = None,
    ) -> None:
        """`made` is called once this end is open, and sees to it that another one joins; `heard` when
        something came, `left` at the end."""
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
        """Be one connection with `newer`, which was opened for this end."""
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
            # There is no other end yet: the rest waits in the kernel.
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
            # Both have said all: each goes when it has written what it still has.
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
