"""Limits the open connections of one listener. Drops connections that are too slow. If too many are open,
drops the least busy ones. This limits the damage of a Slowloris attack, in which clients never complete their
requests.

The module reads no bytes and runs on one event loop. It has a timer only while the server waits for a client.
"""

import asyncio
import resource
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from enum import Enum
from typing import Final, Protocol

from msgspec import Struct

_MAX_CONNECTIONS = 4096


class Limits(Struct, frozen=True):
    """Limits for the connections of one listener: TCP or one Unix socket."""

    #: Maximum number of open connections. Beyond it, the server first drops connections with an incomplete
    #: head, then idle connections. After that, it drops connections of the project or user that holds more
    #: than half of all connections.
    connections: int = 1024
    #: Maximum size in bytes of a request line with its headers. The limit also applies to the chunk headers
    #: and trailers between two parts of a body.
    head_bytes: int = 64 << 10
    #: Maximum time in seconds from the start of a connection or head to the end of the head.
    head_seconds: float = 20.0
    #: Minimum number of bytes of an unfinished body per `body_seconds`, while the server reads the body.
    body_bytes: int = 4 << 10
    body_seconds: float = 20.0
    #: Maximum size in bytes of the rest of a body that the server reads and drops after it has responded to
    #: the request.
    unread_bytes: int = 64 << 20


def limits_of_process() -> Limits:
    """Return limits for this process: a quarter of its maximum number of open files for each listener."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    connections = _MAX_CONNECTIONS if unlimited else max(16, min(_MAX_CONNECTIONS, soft // 4))
    return Limits(connections=connections)


SET_HOLDER: Final[ContextVar[Callable[[str], None]]] = ContextVar("hold", default=lambda _: None)
"""A function that sets the holder of the current request's connection. The holder is the caller's project or
e-mail address."""
_TICK = 1.0


class Reason(Enum):
    """The reason why a connection is dropped."""

    CROWDED = "too many connections are open"
    HEAD_LATE = "its head did not arrive in time"
    BODY_LATE = "its body arrived too slowly"


class Connection(Protocol):
    """The interface of a connection that `Connections` counts and can drop."""

    def drop(self, reason: Reason) -> None:
        """Close the connection now. It is no longer counted."""
        ...

    def is_reading_paused(self) -> bool:
        """Whether the server has paused reading from the connection."""
        ...


class HalfOpen:
    """A connection whose protocol or holder is not known yet. It is counted while `task` determines them."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def drop(self, reason: Reason) -> None:
        self._task.cancel()

    def is_reading_paused(self) -> bool:
        return False


class Connections:
    """The connections of one listener by state: opening (no complete head), active (response in progress) and
    idle (kept alive)."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # Each dictionary is ordered by the time at which a connection entered the state.
        self._opening: dict[Connection, float] = {}
        self._active: set[Connection] = set()
        self._idle: dict[Connection, None] = {}
        # The holder of each connection; "" = unknown.
        self._holders: dict[Connection, str] = {}
        # The unfinished body of each connection: the start of its current interval, and the bytes received
        # since then.
        self._bodies: dict[Connection, tuple[float, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._opening) + len(self._active) + len(self._idle)

    def add(self, connection: Connection) -> None:
        """Count a new connection. If too many are open, this drops another connection or the new one."""
        self._holders[connection] = ""
        self.mark_opening(connection)
        if len(self) > self.limits.connections:
            oldest = next(iter(self._opening))
            # The new connection is dropped only if all others are active and no holder has the majority.
            if oldest is connection:
                oldest = next(iter(self._idle), None) or self._majority_connection() or connection
            self._drop(oldest, Reason.CROWDED)

    def set_holder(self, connection: Connection, holder: str) -> None:
        """Set the holder of a connection, unless it is closed."""
        if connection in self._holders:
            self._holders[connection] = holder

    def mark_opening(self, connection: Connection) -> None:
        self._forget(connection)
        self._opening[connection] = self._now()
        self._watch()

    def mark_active(self, connection: Connection) -> None:
        self._forget(connection)
        self._active.add(connection)

    def mark_idle(self, connection: Connection) -> None:
        """Mark a connection as idle after a response. The client may send another request."""
        self._forget(connection)
        self._idle[connection] = None

    def count_body(self, connection: Connection, size: int) -> None:
        """Count `size` received bytes of an unfinished body."""
        since, received = self._bodies.get(connection) or (self._now(), 0)
        self._bodies[connection] = since, received + size
        self._watch()

    def end_body(self, connection: Connection) -> None:
        self._bodies.pop(connection, None)

    def remove(self, connection: Connection) -> None:
        """Remove a closed connection. Has no effect if it was already removed."""
        self._forget(connection)
        self._bodies.pop(connection, None)
        self._holders.pop(connection, None)

    def _majority_connection(self) -> Connection | None:
        """Return the oldest connection of the holder with more than half of all connections, or None."""
        for holder, count in Counter(filter(None, self._holders.values())).most_common(1):
            if count * 2 > self.limits.connections:
                return next(of for of, owner in self._holders.items() if owner == holder)
        return None

    def _forget(self, connection: Connection) -> None:
        self._opening.pop(connection, None)
        self._active.discard(connection)
        self._idle.pop(connection, None)

    def _drop(self, connection: Connection, reason: Reason) -> None:
        self.remove(connection)
        connection.drop(reason)

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK, self._check)

    def _check(self) -> None:
        self._timer = None
        now = self._now()
        for connection, since in tuple(self._opening.items()):
            if now - since < self.limits.head_seconds:
                break
            self._drop(connection, Reason.HEAD_LATE)
        for connection, (since, received) in tuple(self._bodies.items()):
            if connection.is_reading_paused():
                self._bodies[connection] = now, 0
            elif now - since >= self.limits.body_seconds:
                if received < self.limits.body_bytes:
                    self._drop(connection, Reason.BODY_LATE)
                else:
                    self._bodies[connection] = now, 0
        if self._opening or self._bodies:
            self._watch()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
