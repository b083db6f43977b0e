"""Counts the connections of one listener, and drops some: those that take too long, and the least busy ones
when there are too many.

It reads no bytes. It is used on one event loop, and has no timer while nobody keeps it waiting.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import Enum
from typing import Protocol

from trainshed.httpd.limits import Limits

_TICK = 1.0


class Reason(Enum):
    """Why a connection is dropped."""

    CROWDED = "others need its place"
    HEAD_LATE = "its head took too long"
    BODY_LATE = "its body came too slowly"


class Connection(Protocol):
    """What the counter needs of a connection."""

    def drop(self, reason: Reason) -> None:
        """Close the connection now; it is no longer counted."""
        ...

    def is_held_back(self) -> bool:
        """Whether the server itself has paused reading from it."""
        ...


class Connections:
    """The connections in three states: opening (no complete head), active (being answered), idle (kept
    alive)."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # Each dictionary is in the order in which its connections entered that state.
        self._opening: dict[Connection, float] = {}
        self._peers: dict[Connection, str] = {}
        self._active: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        # Unfinished bodies: since when each is watched, and the bytes that came since.
        self._bodies: dict[Connection, tuple[float, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._opening) + len(self._active) + len(self._idle)

    def open(self, connection: Connection, peer: str) -> None:
        """Count a new connection from a peer address ("" for a Unix socket). It may drop another one, or this
        one."""
        self._peers[connection] = peer
        self.opening(connection)
        if len(self) > self.limits.connections:
            oldest = next(iter(self._opening))
            # The new one is dropped only where all the others are being answered.
            if oldest is connection and self._idle:
                oldest = next(iter(self._idle))
            self._drop(oldest, Reason.CROWDED)

    def opening(self, connection: Connection) -> None:
        """The connection begins a head, or is expected to."""
        self._forget(connection)
        self._opening[connection] = self._now()
        self._watch()

    def active(self, connection: Connection) -> None:
        """The connection's head is complete."""
        self._forget(connection)
        self._active.add(connection)

    def idle(self, connection: Connection) -> None:
        """The connection's request was answered, and it may send another one."""
        self._forget(connection)
        self._idle[connection] = None

    def body(self, connection: Connection, size: int) -> None:
        """`size` bytes of an unfinished body came."""
        since, came = self._bodies.get(connection) or (self._now(), 0)
        self._bodies[connection] = since, came + size
        self._watch()

    def body_ended(self, connection: Connection) -> None:
        """The body is complete."""
        self._bodies.pop(connection, None)

    def closed(self, connection: Connection) -> None:
        """The connection is gone. Calling this twice does no harm."""
        self._forget(connection)
        self._bodies.pop(connection, None)
        self._peers.pop(connection, None)

    def _forget(self, connection: Connection) -> None:
        self._opening.pop(connection, None)
        self._active.discard(connection)
        self._idle.pop(connection, None)

    def _drop(self, connection: Connection, reason: Reason) -> None:
        self.closed(connection)
        connection.drop(reason)

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._now()
        for connection, since in tuple(self._opening.items()):
            if now - since < self.limits.head_seconds:
                break
            self._drop(connection, Reason.HEAD_LATE)
        self._thin_out(now)
        for connection, (since, came) in tuple(self._bodies.items()):
            if connection.is_held_back():
                self._bodies[connection] = now, 0
            elif now - since >= self.limits.body_seconds:
                if came < self.limits.body_bytes:
                    self._drop(connection, Reason.BODY_LATE)
                else:
                    self._bodies[connection] = now, 0
        if self._opening or self._bodies:
            self._watch()

    def _thin_out(self, now: float) -> None:
        """Drop the oldest connections without a complete head of each peer that has too many of them."""
        waiting = Counter(self._peers[connection] for connection in self._opening)
        for connection, since in tuple(self._opening.items()):
            if now - since < self.limits.settling:
                break
            peer = self._peers[connection]
            if waiting[peer] > self.limits.opening:
                waiting[peer] -= 1
                self._drop(connection, Reason.CROWDED)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
