"""Counts the connections of one listener, and drops some: those that take too long, and the least busy ones
when there are too many. Limits how much of a server a caller may occupy before it has sent a request.

It reads no bytes. It is used on one event loop, and has no timer while nobody keeps it waiting.
"""

import asyncio
import resource
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from enum import Enum
from typing import Final, Protocol

from msgspec import Struct

_MOST_CONNECTIONS = 4096


class Limits(Struct, frozen=True):
    """Limits for the connections of one listener: TCP, or one Unix socket."""

    #: Connections open at once. Beyond that the least busy go first: those with incomplete heads, then idle
    #: ones, then those of who has more than half of all.
    connections: int = 1024
    #: Bytes of a request line and headers; also of chunk headers and trailers between two pieces of a body.
    head_bytes: int = 64 << 10
    #: Seconds from a head's first byte, or from the start of a connection, until the head is complete.
    head_seconds: float = 20.0
    #: Bytes of an unfinished body that must come within `body_seconds` while the server reads it.
    body_bytes: int = 4 << 10
    body_seconds: float = 20.0
    #: Bytes of a body that are read and dropped when its request is answered already.
    unread_bytes: int = 64 << 20


def of_this_process() -> Limits:
    """Limits that fit the limit of open files: a quarter of it for the connections of each listener."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    connections = _MOST_CONNECTIONS if unlimited else max(16, min(_MOST_CONNECTIONS, soft // 4))
    return Limits(connections=connections)


HOLD: Final[ContextVar[Callable[[str], None]]] = ContextVar("hold", default=lambda _: None)
"""Says whose the connection of the request is that is being answered."""
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


class HalfOpen:
    """A connection that has not shown yet what it is, or whose: it is counted while `task` finds out."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def drop(self, reason: Reason) -> None:
        self._task.cancel()

    def is_held_back(self) -> bool:
        return False


class Connections:
    """The connections in three states: opening (no complete head), active (being answered), idle (kept
    alive)."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # Each dictionary is in the order in which its connections entered that state.
        self._opening: dict[Connection, float] = {}
        self._active: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        # Whose a connection is; "" = that was not said.
        self._holders: dict[Connection, str] = {}
        # Unfinished bodies: since when each is watched, and the bytes that came since.
        self._bodies: dict[Connection, tuple[float, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._opening) + len(self._active) + len(self._idle)

    def open(self, connection: Connection) -> None:
        """Count a new connection. It may drop another one, or this one."""
        self._holders[connection] = ""
        self.opening(connection)
        if len(self) > self.limits.connections:
            oldest = next(iter(self._opening))
            # The new one is dropped only where all the others are being answered, and are many people's.
            if oldest is connection:
                oldest = next(iter(self._idle), None) or self._of_who_has_most() or connection
            self._drop(oldest, Reason.CROWDED)

    def held(self, connection: Connection, holder: str) -> None:
        """Say whose a connection is, unless it is gone."""
        if connection in self._holders:
            self._holders[connection] = holder

    def opening(self, connection: Connection) -> None:
        self._forget(connection)
        self._opening[connection] = self._now()
        self._watch()

    def active(self, connection: Connection) -> None:
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
        self._bodies.pop(connection, None)

    def closed(self, connection: Connection) -> None:
        """The connection is gone. Calling this twice does no harm."""
        self._forget(connection)
        self._bodies.pop(connection, None)
        self._holders.pop(connection, None)

    def _of_who_has_most(self) -> Connection | None:
        """Return the oldest connection of who has more than half of all; None if nobody has."""
        for holder, count in Counter(filter(None, self._holders.values())).most_common(1):
            if count * 2 > self.limits.connections:
                return next(of for of, whose in self._holders.items() if whose == holder)
        return None

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

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
