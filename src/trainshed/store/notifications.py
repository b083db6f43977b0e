"""The store's port for notifications that are to be sent: an outbox. The commit that they tell of puts them
into it (`store.port.Commit`). Contract suite: tests/contract/store."""

from typing import Protocol

from msgspec import Struct

from trainshed.core.notifications import Notification
from trainshed.core.units import Nanos


class Outgoing(Struct, frozen=True):
    """A notification that was not delivered yet."""

    id: int
    notification: Notification
    #: Not to be tried before; ns since the epoch.
    due: Nanos
    #: How often it was tried in vain.
    tries: int = 0


class Notifications(Protocol):
    """Every write is durable when its call returns; nothing happens if the notification was removed
    meanwhile."""

    async def waiting(self, limit: int) -> tuple[Outgoing, ...]:
        """Those that are to be tried next, by `due`."""
        ...

    async def count(self) -> tuple[int, int]:
        """How many wait, and how many of them were tried in vain."""
        ...

    async def put_off(self, id_: int, due: Nanos) -> None:
        """It was tried in vain, and is tried again at `due`."""
        ...

    async def remove(self, id_: int) -> None:
        """It was delivered, or is given up."""
        ...
