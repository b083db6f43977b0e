"""The store's port for the outbox: notifications that are to be sent. They are put into it by the commits of
what they report (`store.port.Commit`). Contract suite: tests/contract/store."""

from typing import Protocol

from msgspec import Struct

from trainshed.core.notifications import Notification
from trainshed.core.units import Nanos


class Outgoing(Struct, frozen=True):
    """A notification that is not delivered yet."""

    id: int
    notification: Notification
    #: The earliest time of the next try; ns since the epoch.
    due: Nanos
    #: How often it was tried without success.
    tries: int = 0


class Notifications(Protocol):
    """Every write is durable when its call returns; it does nothing if the notification was removed
    meanwhile."""

    async def waiting(self, limit: int) -> tuple[Outgoing, ...]:
        """Return the notifications that are to be tried next, ascending by `due`."""
        ...

    async def count(self) -> tuple[int, int]:
        """Return how many notifications wait, and how many of these were tried without success."""
        ...

    async def put_off(self, id_: int, due: Nanos) -> None:
        """Record that a try failed, and that the next one is at `due`."""
        ...

    async def remove(self, id_: int) -> None:
        """Remove a notification that was delivered or given up."""
        ...
