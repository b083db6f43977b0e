"""Implements tensorboards (`store.resources.Tensorboards`) on SQLite."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from trainshed.core.errors import AlreadyExists, InvalidRequest, NotFound, Violation
from trainshed.core.tensorboards.records import BoardName, BoardResource, Level
from trainshed.store.codec import decode_board_resource, encode_board_resource
from trainshed.store.records import Operation
from trainshed.store.sqlite.connections import Reading, Writing, load_statements
from trainshed.store.sqlite.rows import ABOVE_ALL_UIDS, Parameters
from trainshed.store.sqlite.writes import insert_operation

MAX_SERIES: Final = 1_000
"""Series of a run that are read together with the run."""
_SQL = load_statements("tensorboards.sql")


class SqliteTensorboards:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def create(
        self, resources: Sequence[BoardResource], operation: Operation | None = None
    ) -> tuple[BoardResource, ...]:
        def work(connection: sqlite3.Connection) -> tuple[BoardResource, ...]:
            created = tuple([_create(connection, resource) for resource in resources])
            if operation is not None:
                insert_operation(connection, operation)
            return created

        return await self._writer.run("create", work)

    async def resource(self, name: BoardName) -> BoardResource:
        return self._snapshots.here(lambda connection: _resource(connection, name))

    async def below(
        self, parent: str, level: Level, after: str, limit: int
    ) -> tuple[BoardResource, ...]:
        page = {"parent": parent, "level": level, "after": after, "limit": limit}

        def read(connection: sqlite3.Connection) -> tuple[BoardResource, ...]:
            rows = connection.execute(_SQL["below"], page).fetchall()
            if not rows and level is not Level.TENSORBOARD:
                _require(connection, parent, level)
            return tuple([decode_board_resource(record) for (record,) in rows])

        return await self._snapshots.aside(read)

    async def runs(
        self, names: Sequence[BoardName]
    ) -> tuple[tuple[BoardResource, tuple[BoardResource, ...]], ...]:
        def read(
            connection: sqlite3.Connection,
        ) -> tuple[tuple[BoardResource, tuple[BoardResource, ...]], ...]:
            rows = [connection.execute(_SQL["resource"], _key(name)).fetchone() for name in names]
            return tuple(
                (decode_board_resource(row[0]), _series(connection, name))
                for name, row in zip(names, rows, strict=True)
                if row is not None
            )

        return await self._snapshots.aside(read)

    async def change(
        self,
        name: BoardName,
        change: Callable[[BoardResource], BoardResource],
        operation: Callable[[BoardResource], Operation] | None = None,
    ) -> BoardResource:
        def work(connection: sqlite3.Connection) -> BoardResource:
            new = replace(change(_resource(connection, name)), name=name)
            _refuse_double(connection, new)
            connection.execute(_SQL["replace"], _columns(new))
            _take_default(connection, new)
            if operation is not None:
                insert_operation(connection, operation(new))
            return new

        return await self._writer.run("change", work)

    async def delete(self, name: BoardName, operation: Operation) -> tuple[int, ...]:
        def work(connection: sqlite3.Connection) -> tuple[int, ...]:
            gone = [_resource(connection, name)]
            below = {"name": str(name)}
            gone += [
                decode_board_resource(raw)
                for (raw,) in connection.execute(_SQL["all_below"], below)
            ]
            connection.execute(_SQL["delete_below"], below)
            connection.execute(_SQL["delete"], _key(name))
            insert_operation(connection, operation)
            return tuple([resource.uid for resource in gone if resource.name.level is Level.RUN])

        return await self._writer.run("delete", work)


def _series(connection: sqlite3.Connection, run: BoardName) -> tuple[BoardResource, ...]:
    page = {"parent": str(run), "level": Level.SERIES, "after": "", "limit": MAX_SERIES}
    rows = connection.execute(_SQL["below"], page)
    return tuple(decode_board_resource(record) for (record,) in rows)


def _create(connection: sqlite3.Connection, resource: BoardResource) -> BoardResource:
    name = resource.name
    if name.level is not Level.TENSORBOARD:
        _require(connection, name.parent, name.level)
    if (same := _refuse_double(connection, resource)) is not None:
        return same
    if connection.execute(_SQL["insert"], _columns(resource)).rowcount != 1:
        raise AlreadyExists(f"{name} already exists; choose another id")
    _take_default(connection, resource)
    return resource


def _refuse_double(connection: sqlite3.Connection, series: BoardResource) -> BoardResource | None:
    """Return the run's other series of the same display name, if its type and plug-in are also the same; None
    if there is no such series. Raises InvalidRequest if it differs."""
    if series.name.level is not Level.SERIES:
        return None
    rows = connection.execute(_SQL["called"], _columns(series)).fetchall()
    for (raw,) in rows:
        other = decode_board_resource(raw)
        if other.name == series.name:
            continue
        if (other.value_type, other.plugin_name) == (series.value_type, series.plugin_name):
            return other
        text = f"A time series called {series.display_name!r} of another type does already exist in the run."
        raise InvalidRequest((Violation("tensorboard_time_series.display_name", text),))
    return None


def _take_default(connection: sqlite3.Connection, board: BoardResource) -> None:
    """Make the board the only default of its location, if it is a default."""
    if not board.is_default:
        return
    page = {
        "parent": board.name.parent,
        "level": board.name.level,
        "after": "",
        "limit": ABOVE_ALL_UIDS,
    }
    for (raw,) in connection.execute(_SQL["below"], page).fetchall():
        other = decode_board_resource(raw)
        if other.is_default and other.name != board.name:
            connection.execute(_SQL["replace"], _columns(replace(other, is_default=False)))


def _require(connection: sqlite3.Connection, parent: str, level: Level) -> None:
    above = list(Level)[list(Level).index(level) - 1]
    _resource(connection, BoardName.parse(parent, above, of="parent"))


def _resource(connection: sqlite3.Connection, name: BoardName) -> BoardResource:
    row = connection.execute(_SQL["resource"], _key(name)).fetchone()
    if row is None:
        raise NotFound(f"{name} does not exist; check the project, the location and the ids")
    return decode_board_resource(row[0])


def _key(name: BoardName) -> Parameters:
    return {"parent": name.parent, "level": name.level, "resource_id": name.own_id}


def _columns(resource: BoardResource) -> Parameters:
    return _key(resource.name) | {
        "display_name": resource.display_name,
        "record": encode_board_resource(resource),
    }
