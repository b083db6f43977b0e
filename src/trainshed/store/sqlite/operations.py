"""Implements operations that belong to no study (`store.operations.Operations`) on SQLite."""

from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite import writes
from trainshed.store.sqlite.connections import Reading, Writing


class SqliteOperations:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def begin(self, operation: Operation) -> None:
        await self._writer.run(
            "begin_operation", lambda connection: writes.insert_operation(connection, operation)
        )

    async def running(self, kind: OperationKind) -> tuple[Operation, ...]:
        found = self._snapshots.here(lambda connection: writes.running_operations(connection, None))
        return tuple(operation for operation in found if operation.kind is kind)

    async def finish(self, operation: Operation) -> bool:
        return await self._writer.run(
            "finish_operation", lambda connection: writes.finish_operation(connection, operation)
        )
