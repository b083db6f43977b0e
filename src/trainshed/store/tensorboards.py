"""The store's port for tensorboards and what is below them. Contract suite: tests/contract/store."""

from collections.abc import Callable, Sequence
from typing import Protocol

from trainshed.core.tensorboards.records import BoardName, BoardResource, Level
from trainshed.store.records import Operation


class Tensorboards(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def create(
        self, resources: Sequence[BoardResource], operation: Operation | None = None
    ) -> tuple[BoardResource, ...]:
        """Store resources, all or none, each below a parent that exists. If a series with the same display
        name, type and plug-in exists, it is returned in place of the new one, because clients create series
        again without looking. A tensorboard that is the default replaces the former default of its location.
        Raises AlreadyExists, NotFound (a parent), InvalidRequest (another series of the run has that display
        name)."""
        ...

    async def resource(self, name: BoardName) -> BoardResource:
        """Raises NotFound."""
        ...

    async def below(
        self, parent: str, level: Level, after: str, limit: int
    ) -> tuple[BoardResource, ...]:
        """Return resources ascending by id, after the id `after` if that is not ""; `parent` may be a
        location. Raises NotFound (the parent does not exist)."""
        ...

    async def runs(
        self, names: Sequence[BoardName]
    ) -> tuple[tuple[BoardResource, tuple[BoardResource, ...]], ...]:
        """Return those of these runs that exist, each with at most a thousand of its series, ordered by
        id."""
        ...

    async def change(
        self,
        name: BoardName,
        change: Callable[[BoardResource], BoardResource],
        operation: Callable[[BoardResource], Operation] | None = None,
    ) -> BoardResource:
        """Replace a resource by what `change`, a pure function, returns for it, in one step. Raises NotFound,
        InvalidRequest (as `create`), and what `change` raises."""
        ...

    async def delete(self, name: BoardName, operation: Operation) -> tuple[int, ...]:
        """Delete a resource and everything below it. Returns the uids of the deleted runs. Raises
        NotFound."""
        ...
