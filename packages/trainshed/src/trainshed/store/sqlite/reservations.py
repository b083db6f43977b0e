"""Stores persistent resources in SQLite."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.job import JobError
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.reservations import PersistentResource, PersistentResourceName
from trainshed.core.units import Nanos
from trainshed.core.usage import Use
from trainshed.store.codec import OPERATION, PERSISTENT_RESOURCE
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite.connections import load_statements
from trainshed.store.sqlite.jobs import put_uses
from trainshed.store.sqlite.tables import Resources, insert_operation

_OPERATIONS = load_statements("operations.sql")
_V1 = "google.cloud.aiplatform.v1"


class Ending(Struct, frozen=True):
    """The end of an operation. `response`: the resource in the JSON form of the public API."""

    name: str
    at: Nanos
    response: dict[str, Any]
    error: JobError | None = None


class PersistentResources(Resources[PersistentResourceName, PersistentResource]):
    sql = load_statements("persistent_resources.sql")
    codec = PERSISTENT_RESOURCE

    async def all(self) -> tuple[PersistentResource, ...]:
        """Return all persistent resources of all projects."""
        return await self._records(self.sql["all"], {}, self.codec)

    async def save(
        self,
        name: PersistentResourceName,
        record: PersistentResource | None,
        uses: Sequence[Use] = (),
        begun: Operation | None = None,
        endings: Sequence[Ending] = (),
    ) -> None:
        """Replace a resource in one transaction. `record`: None = delete the resource. The transaction also
        stores the use of machines that were released (`uses`), a new operation (`begun`), and the ends of
        other operations (`endings`). An operation that was cancelled or deleted stays unchanged."""

        def work(connection: sqlite3.Connection) -> None:
            if record is not None:
                self.put(connection, record)
            else:
                connection.execute(self.sql["delete"], self.key(name))
            put_uses(connection, uses)
            if begun is not None:
                insert_operation(connection, begun)
            for ending in endings:
                _finish(connection, ending)

        await self._writer.run("save_persistent_resource", work)


def _finish(connection: sqlite3.Connection, ending: Ending) -> None:
    row = connection.execute(_OPERATIONS["operation"], {"name": ending.name}).fetchone()
    if row is None:
        return
    operation = OPERATION.decode(row[0])
    ended = replace(
        operation,
        updated=ending.at,
        state=OperationState.FAILED if ending.error is not None else OperationState.SUCCEEDED,
        error=ending.error,
    )
    if operation.kind is not OperationKind.DELETE:
        ended = replace(ended, response=json.dumps(ending.response, ensure_ascii=False))
    parameters = {"name": ending.name, "record": OPERATION.encode(ended)}
    connection.execute(_OPERATIONS["finish_operation"], parameters)
