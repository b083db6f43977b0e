"""The store's port for operations that the service carries out beside requests and that belong to no study.
Contract suite: tests/contract/store."""

from typing import Protocol

from trainshed.store.records import Operation, OperationKind


class Operations(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def begin(self, operation: Operation) -> None:
        """Store a RUNNING operation. Raises Unavailable (its name is taken)."""
        ...

    async def running(self, kind: OperationKind) -> tuple[Operation, ...]:
        """Return the operations of a kind that are not done, oldest first."""
        ...

    async def finish(self, operation: Operation) -> bool:
        """Store the operation as it ended. Returns False, and writes nothing, if it is done already or was
        deleted."""
        ...
