"""Hands TCP connections byte for byte to a unix socket, both ways, until both ends have said all.

Knows nothing of what is said. Nothing is lost and little is kept: what an end cannot take waits in the kernel. Of too many
connections those that have been silent for longest go.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from trainshed.buckets.sockets import reachable
from trainshed.eventloop.background import Crew

log = logging.getLogger(__name__)

_BACKLOG = 1024


class Relay:
    """All connections of one listening socket. Used on one event loop."""

    def __init__(
        self, listener: socket.socket, target: Callable[[], Awaitable[Path]], most: int
    ) -> None:
        """`target` answers the unix socket as soon as somebody listens there; it is asked for every connection, which
        waits for it, and is closed where it fails. `most`: connections at once."""
        self._listener = listener
        self._target = target
        self._server: asyncio.Server | None = None
        self._joining = Crew()
        self._most = most
        self._open: set[asyncio.Transport] = set()
        # The ends of clients, those that were silent for longest first.
        self._clients: dict[_Side, None] = {}

    async def start(self) -> None:
        """Take connections from now on."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Side(self._join, self._open, self._heard, self._left),
            sock=self._listener,
            backlog=_BACKLOG,
        )

    def refuse(self) -> None:
        """Take no more connections; those that wait for the target are closed."""
        if self._server is not None:
            self._server.close()
        self._joining.cancel()

    def abort(self) -> None:
        """End every connection now."""
        for transport in tuple(self._open):
            transport.abort()

    def _join(self, client: "_Side") -> None:
        self._heard(client)
        if len(self._clients) > self._most:
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.transport.abort()
        self._joining.begin(self._connect(client), "handing a connection on")

    def _heard(self, client: "_Side") -> None:
        self._clients.pop(client, None)
        self._clients[client] = None

    def _left(self, client: "_Side") -> None:
        self._clients.pop(client, None)

    async def _connect(self, client: "_Side") -> None:
        """Open the other end of a connection."""
        try:
            with reachable(await self._target()) as short:
                await asyncio.get_running_loop().create_unix_connection(
                    lambda: _Side(client.join, self._open), path=short
                )
        except Exception as failure:
            log.error("a connection could not be handed on", exc_info=failure)
            client.transport.abort()
        except asyncio.CancelledError:
            client.transport.abort()
            raise


class _Side(asyncio.Protocol):
    """One end of a relayed connection. What comes in is written to the other end; where that is slow, no more is read;
    an end of the stream goes on as one, and what went wrong on one side ends the other."""

    transport: asyncio.Transport

    def __init__(
        self,
        made: Callable[["_Side"], None],
        everyone: set[asyncio.Transport],
        heard: Callable[["_Side"], None] | None = None,
        left: Callable[["_Side"], None] | None = None,
    ) -> None:
        """`made` is called once this end is open, and sees to it that another one joins; `heard` when something came,
        `left` at the end."""
        self._heard = heard
        self._left = left
        self._made = made
        self._everyone = everyone
        self._other: _Side | None = None
        self._early: list[bytes] = []
        self._ended = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._everyone.add(transport)
        self._made(self)

    def join(self, newer: "_Side") -> None:
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
