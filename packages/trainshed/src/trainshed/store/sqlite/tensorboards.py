"""Tensorboards in SQLite."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from trainshed.core.errors import AlreadyExists, InvalidRequest, Violation
from trainshed.core.tensorboards import BoardName, BoardResource, Level
from trainshed.store.codec import BOARD_RESOURCE
from trainshed.store.records import Operation
from trainshed.store.sqlite.connections import Parameters, Port, existing, load_statements, records
from trainshed.store.sqlite.rows import ABOVE_ALL_UIDS
from trainshed.store.sqlite.writes import insert_operation

MAX_SERIES: Final = 1_000
"""Series of a run that are read together with the run."""
_SQL = load_statements("tensorboards.sql")


class Tensorboards(Port):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def create(
        self, resources: Sequence[BoardResource], operation: Operation | None = None
    ) -> tuple[BoardResource, ...]:
        """Store resources, all or none, each below a parent that exists. If a series with the same display
        name, type and plug-in exists, it is returned in place of the new one, because clients create series
        again without looking. A tensorboard that is the default replaces the former default of its location.
        Raises AlreadyExists, NotFound (a parent), InvalidRequest (another series of the run has that display
        name)."""

        def work(connection: sqlite3.Connection) -> tuple[BoardResource, ...]:
            created = tuple([_create(connection, resource) for resource in resources])
            if operation is not None:
                insert_operation(connection, operation)
            return created

        return await self._writer.run("create", work)

    async def resource(self, name: BoardName) -> BoardResource:
        """Raises NotFound."""
        return self._snapshots.here(lambda connection: _resource(connection, name))

    async def below(
        self, parent: str, level: Level, after: str, limit: int
    ) -> tuple[BoardResource, ...]:
        """Return resources ascending by id, after the id `after` if that is not ""; `parent` may be a
        location. Raises NotFound (the parent does not exist)."""
        page = {"parent": parent, "level": level, "after": after, "limit": limit}

        def read(connection: sqlite3.Connection) -> tuple[BoardResource, ...]:
            resources = records(connection, _SQL["below"], page, BOARD_RESOURCE)
            if not resources and level is not Level.TENSORBOARD:
                _require(connection, parent, level)
            return resources

        return await self._snapshots.aside(read)

    async def runs(
        self, names: Sequence[BoardName]
    ) -> tuple[tuple[BoardResource, tuple[BoardResource, ...]], ...]:
        """Return those of these runs that exist, each with at most a thousand of its series, ordered by
        id."""

        def read(
            connection: sqlite3.Connection,
        ) -> tuple[tuple[BoardResource, tuple[BoardResource, ...]], ...]:
            rows = [connection.execute(_SQL["resource"], _key(name)).fetchone() for name in names]
            return tuple(
                (BOARD_RESOURCE.decode(row[0]), _series(connection, name))
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
        """Replace a resource by what `change`, a pure function, returns for it, in one step. Raises NotFound,
        InvalidRequest (as `create`), and what `change` raises."""

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
        """Delete a resource and everything below it. Returns the uids of the deleted runs. Raises
        NotFound."""

        def work(connection: sqlite3.Connection) -> tuple[int, ...]:
            gone = [_resource(connection, name)]
            below = {"name": str(name)}
            gone += records(connection, _SQL["all_below"], below, BOARD_RESOURCE)
            connection.execute(_SQL["delete_below"], below)
            connection.execute(_SQL["delete"], _key(name))
            insert_operation(connection, operation)
            return tuple([resource.uid for resource in gone if resource.name.level is Level.RUN])

        return await self._writer.run("delete", work)


def _series(connection: sqlite3.Connection, run: BoardName) -> tuple[BoardResource, ...]:
    page = {"parent": str(run), "level": Level.SERIES, "after": "", "limit": MAX_SERIES}
    return records(connection, _SQL["below"], page, BOARD_RESOURCE)


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
    for other in records(connection, _SQL["called"], _columns(series), BOARD_RESOURCE):
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
    for other in records(connection, _SQL["below"], page, BOARD_RESOURCE):
        if other.is_default and other.name != board.name:
            connection.execute(_SQL["replace"], _columns(replace(other, is_default=False)))


def _require(connection: sqlite3.Connection, parent: str, level: Level) -> None:
    above = list(Level)[list(Level).index(level) - 1]
    _resource(connection, BoardName.parse(parent, above, of="parent"))


def _resource(connection: sqlite3.Connection, name: BoardName) -> BoardResource:
    return existing(connection, _SQL["resource"], _key(name), BOARD_RESOURCE, name)


def _key(name: BoardName) -> Parameters:
    return {"parent": name.parent, "level": name.level, "resource_id": name.own_id}


def _columns(resource: BoardResource) -> Parameters:
    return _key(resource.name) | {
        "display_name": resource.display_name,
        "record": BOARD_RESOURCE.encode(resource),
    }
