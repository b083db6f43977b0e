"""The store's door for operations that the service carries out beside requests, and that are of no study.
Contract suite: tests/contract/store."""

from typing import Protocol

from trainshed.store.records import Operation, OperationKind


class Operations(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def begin(self, operation: Operation) -> None:
        """Store a RUNNING operation. Raises Unavailable (its name is taken)."""
        ...

    async def running(self, kind: OperationKind) -> tuple[Operation, ...]:
        """Those of a kind that are not done, oldest first."""
        ...

    async def finish(self, operation: Operation) -> bool:
        """Store the operation as it ended. False if it is done already, or gone; then nothing is written."""
        ...
