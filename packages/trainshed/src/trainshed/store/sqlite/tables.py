"""Operations that are common to the tables of all resources: create, get, list, change, delete."""

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from msgspec.structs import asdict

from trainshed.core.errors import AlreadyExists, Unavailable
from trainshed.store.codec import OPERATION, Codec
from trainshed.store.records import Operation
from trainshed.store.sqlite.connections import Parameters, Port, load_statements, read_existing


class Named(Protocol):
    """A record that contains the name of its resource."""

    @property
    def name(self) -> Any: ...


N = TypeVar("N")
R = TypeVar("R", bound=Named)


class Resources(Port, Generic[N, R]):
    """Stores the resources of one kind. The statements `insert`, `get`, `list`, `replace` and `delete` are in
    an SQL file. The finished operation of a write is stored in the same transaction."""

    sql: Mapping[str, str]
    codec: Codec[R]

    def key(self, name: N) -> Parameters:
        return asdict(name)  # type: ignore[arg-type]

    def columns(self, record: R) -> Parameters:
        return self.key(record.name) | {"record": self.codec.encode(record)}

    async def create(self, record: R, operation: Operation | None = None) -> R:
        """Create a resource. Raise AlreadyExists, and the errors of `insert`."""

        def work(connection: sqlite3.Connection) -> R:
            created = self.insert(connection, record)
            if operation is not None:
                insert_operation(connection, operation)
            return created

        return await self._writer.run("create", work)

    async def get(self, name: N) -> R:
        """Return a resource. Raise NotFound."""
        return self._snapshots.read_now(lambda connection: self.read(connection, name))

    async def list(self, parent: Parameters) -> tuple[R, ...]:
        """Return all resources whose columns have the values in `parent`, in the order of the SQL statement
        `list`."""
        return await self._records(self.sql["list"], parent, self.codec)

    async def change(
        self, name: N, change: Callable[[R], R], operation: Callable[[R], Operation] | None = None
    ) -> R:
        """Replace a resource by the result of `change`, a pure function, in one transaction. Write nothing if
        the resource is unchanged and there is no operation. Raise NotFound, and the errors of `change`."""

        def work(connection: sqlite3.Connection) -> R:
            old = self.read(connection, name)
            new = change(old)
            if new != old:
                self.put(connection, new)
            if operation is not None:
                insert_operation(connection, operation(new))
            return new

        return await self._writer.run("change", work)

    async def delete(
        self, name: N, operation: Operation, check: Callable[[R], None] = lambda _: None
    ) -> tuple[R, ...]:
        """Delete a resource with all its children. Return the deleted resource. `check`: may raise an error
        to prevent the deletion. Raise NotFound, and the errors of `check`."""

        def work(connection: sqlite3.Connection) -> tuple[R, ...]:
            record = self.read(connection, name)
            check(record)
            removed = self.remove(connection, record)
            insert_operation(connection, operation)
            return removed

        return await self._writer.run("delete", work)

    def insert(self, connection: sqlite3.Connection, record: R) -> R:
        """Store a record, and return it in its stored form. Raise AlreadyExists."""
        if connection.execute(self.sql["insert"], self.columns(record)).rowcount != 1:
            raise AlreadyExists(f"{record.name} already exists; choose another id")
        return record

    def read(self, connection: sqlite3.Connection, name: N) -> R:
        """Return a record. Raise NotFound."""
        return read_existing(connection, self.sql["get"], self.key(name), self.codec, name)

    def put(self, connection: sqlite3.Connection, record: R) -> None:
        connection.execute(self.sql["replace"], self.columns(record))

    def remove(self, connection: sqlite3.Connection, record: R) -> tuple[R, ...]:
        """Delete a record with its children. Return all deleted records."""
        connection.execute(self.sql["delete"], self.key(record.name))
        return (record,)


_OPERATIONS = load_statements("operations.sql")


def insert_operation(connection: sqlite3.Connection, operation: Operation) -> None:
    """Store a new operation. Raise Unavailable if its name is already in use."""
    parameters = {
        "name": operation.name,
        "study_uid": operation.study,
        "created": operation.created,
        "is_running": int(not operation.state.is_final),
        "record": OPERATION.encode(operation),
    }
    if connection.execute(_OPERATIONS["insert_operation"], parameters).rowcount != 1:
        raise Unavailable("two operations received the same name; send the request again")
