"""The store's door for tensorboards and what is below them. Contract suite: tests/contract/store."""

from collections.abc import Callable, Sequence
from typing import Protocol

from trainshed.core.tensorboards.records import BoardName, BoardResource, Level
from trainshed.store.records import Operation


class Tensorboards(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def create(
        self, resources: Sequence[BoardResource], operation: Operation | None = None
    ) -> tuple[BoardResource, ...]:
        """Store all or none, each below a parent that exists. A series that is there with the same display
        name, type and plug-in is given back in place of the new one: clients create it again rather than
        look. A tensorboard that is the default takes that from others of its location. Raises AlreadyExists,
        NotFound (a parent), InvalidRequest (another series of the run has that display name)."""
        ...

    async def resource(self, name: BoardName) -> BoardResource:
        """Raises NotFound."""
        ...

    async def below(
        self, parent: str, level: Level, after: str, limit: int
    ) -> tuple[BoardResource, ...]:
        """Ascending by id, behind the id `after` if that is not ""; `parent` may be a location. Raises
        NotFound (a parent that is none)."""
        ...

    async def runs(
        self, names: Sequence[BoardName]
    ) -> tuple[tuple[BoardResource, tuple[BoardResource, ...]], ...]:
        """Of these runs those that are there, each with its series in the order of their ids; of one at most
        a thousand."""
        ...

    async def change(
        self,
        name: BoardName,
        change: Callable[[BoardResource], BoardResource],
        operation: Callable[[BoardResource], Operation] | None = None,
    ) -> BoardResource:
        """Replace a resource by what `change`, a pure function, makes of it, in one step. Raises NotFound,
        InvalidRequest (as `create`), and what `change` raises."""
        ...

    async def delete(self, name: BoardName, operation: Operation) -> tuple[int, ...]:
        """With all that is below it; returns the uids of the runs that are gone. Raises NotFound."""
        ...
