"""Implements datasets (`store.datasets.Datasets`) on SQLite."""

import sqlite3
from collections.abc import Callable

from msgspec.structs import replace

from trainshed.core.datasets.records import Dataset, DatasetName
from trainshed.core.errors import AlreadyExists, NotFound
from trainshed.store.codec import decode_dataset, encode_dataset
from trainshed.store.records import Operation
from trainshed.store.sqlite.connections import Reading, Writing, load_statements
from trainshed.store.sqlite.rows import Parameters, rows_after
from trainshed.store.sqlite.writes import insert_operation

_SQL = load_statements("datasets.sql")


class SqliteDatasets:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def create(self, dataset: Dataset, operation: Operation) -> None:
        parameters = _columns(dataset)

        def work(connection: sqlite3.Connection) -> None:
            if connection.execute(_SQL["insert"], parameters).rowcount != 1:
                raise AlreadyExists(f"{dataset.name} already exists; choose another id")
            insert_operation(connection, operation)

        await self._writer.run("create", work)

    async def dataset(self, name: DatasetName) -> Dataset:
        return self._snapshots.here(lambda connection: _dataset(connection, name))

    async def datasets(
        self, project_id: str, location: str, after: str, limit: int
    ) -> tuple[Dataset, ...]:
        place = {"project_id": project_id, "location": location, "dataset_id": after}

        def read(connection: sqlite3.Connection) -> tuple[Dataset, ...]:
            rows = rows_after(connection, _SQL, "datasets", place, after=after, limit=limit)
            return tuple([decode_dataset(record) for (record,) in rows])

        return await self._snapshots.aside(read)

    async def change(
        self,
        name: DatasetName,
        change: Callable[[Dataset], Dataset],
        operation: Operation | None = None,
    ) -> Dataset:
        def work(connection: sqlite3.Connection) -> Dataset:
            new = replace(change(_dataset(connection, name)), name=name)
            connection.execute(_SQL["replace"], _columns(new))
            if operation is not None:
                insert_operation(connection, operation)
            return new

        return await self._writer.run("change", work)

    async def delete(self, name: DatasetName, operation: Operation) -> None:
        def work(connection: sqlite3.Connection) -> None:
            if connection.execute(_SQL["delete"], _key(name)).rowcount != 1:
                raise _missing(name)
            insert_operation(connection, operation)

        await self._writer.run("delete", work)


def _dataset(connection: sqlite3.Connection, name: DatasetName) -> Dataset:
    row = connection.execute(_SQL["dataset"], _key(name)).fetchone()
    if row is None:
        raise _missing(name)
    return decode_dataset(row[0])


def _key(name: DatasetName) -> Parameters:
    return {
        "project_id": name.project_id,
        "location": name.location,
        "dataset_id": name.dataset_id,
    }


def _columns(dataset: Dataset) -> Parameters:
    return _key(dataset.name) | {"made": dataset.created, "record": encode_dataset(dataset)}


def _missing(name: DatasetName) -> NotFound:
    return NotFound(f"{name} does not exist; check the project, the location and the id")
