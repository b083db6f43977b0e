"""Stores tensorboards in SQLite."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from trainshed.core.errors import InvalidRequest, Violation
from trainshed.store.codec import Codec
from trainshed.store.sqlite.connections import Parameters, load_statements, records
from trainshed.store.sqlite.tables import Resources
from trainshed_tracking.tensorboards.records import LEVELS, BoardName, BoardResource, Level


class Tensorboards(Resources[BoardName, BoardResource]):
    sql = load_statements("tensorboards.sql", Path(__file__).parent)
    codec = Codec("tensorboard_resources", "record", BoardResource)

    def key(self, name: BoardName) -> Parameters:
        return {"parent": name.parent, "level": name.level, "resource_id": name.own_id}

    def columns(self, record: BoardResource) -> Parameters:
        return super().columns(record) | {"display_name": record.display_name}

    async def create_all(self, resources: Sequence[BoardResource]) -> tuple[BoardResource, ...]:
        """Store all resources or none. Returns and raises the same as `insert`."""

        def work(connection: sqlite3.Connection) -> tuple[BoardResource, ...]:
            return tuple([self.insert(connection, resource) for resource in resources])

        return await self._writer.run("create_all", work)

    async def list(self, parent: Parameters) -> tuple[BoardResource, ...]:
        """Return the resources of the level `level` below the resource or location `parent`, in order of ID.
        Raises NotFound if the parent does not exist."""
        resources = await super().list(parent)
        if not resources and parent["level"] != Level.TENSORBOARD:
            await self.get(_parent(parent["parent"], parent["level"]))
        return resources

    async def runs(
        self, names: Sequence[BoardName]
    ) -> tuple[tuple[BoardResource, tuple[BoardResource, ...]], ...]:
        """Return the runs that exist and their series, in order of ID."""

        def read(
            connection: sqlite3.Connection,
        ) -> tuple[tuple[BoardResource, tuple[BoardResource, ...]], ...]:
            runs = [connection.execute(self.sql["get"], self.key(name)).fetchone() for name in names]
            series = [{"parent": str(name), "level": Level.SERIES} for name in names]
            return tuple(
                (self.codec.decode(run[0]), records(connection, self.sql["list"], below, self.codec))
                for run, below in zip(runs, series, strict=True)
                if run is not None
            )

        return await self._snapshots.read_async(read)

    def insert(self, connection: sqlite3.Connection, record: BoardResource) -> BoardResource:
        """Store a resource, and return it. If the run already has a series with the same display name, type
        and plug-in, return that series instead, because clients create series repeatedly.

        Raises AlreadyExists, NotFound if the parent does not exist, and InvalidRequest if a different series
        of the run has the display name.
        """
        name = record.name
        if name.level is not Level.TENSORBOARD:
            self.read(connection, _parent(name.parent, name.level))
        if (same := self._double(connection, record)) is not None:
            return same
        super().insert(connection, record)
        self._take_default(connection, record)
        return record

    def put(self, connection: sqlite3.Connection, record: BoardResource) -> None:
        """Replace a record. Raises InvalidRequest if the display name changes to that of another series of
        the same run."""
        if self.read(connection, record.name).display_name != record.display_name:
            self._double(connection, record, is_new=False)
        super().put(connection, record)
        self._take_default(connection, record)

    def remove(self, connection: sqlite3.Connection, record: BoardResource) -> tuple[BoardResource, ...]:
        below = {"name": str(record.name)}
        removed = records(connection, self.sql["all_below"], below, self.codec)
        connection.execute(self.sql["delete_below"], below)
        return (*super().remove(connection, record), *removed)

    def _double(
        self, connection: sqlite3.Connection, series: BoardResource, *, is_new: bool = True
    ) -> BoardResource | None:
        """Return another series of the run with the same display name, type and plug-in, or None if there is
        none. Raises InvalidRequest if a series with that display name differs, or if `series` is not new."""
        if series.name.level is not Level.SERIES:
            return None
        for other in records(connection, self.sql["called"], self.columns(series), self.codec):
            if other.name == series.name:
                continue
            is_alike = (other.value_type, other.plugin_name) == (series.value_type, series.plugin_name)
            if is_new and is_alike:
                return other
            kind = "" if is_alike else " of another type"
            text = f"A time series called {series.display_name!r}{kind} already exists in the run."
            raise InvalidRequest((Violation("tensorboard_time_series.display_name", text),))
        return None

    def _take_default(self, connection: sqlite3.Connection, board: BoardResource) -> None:
        """If the tensorboard is the new default, remove this mark from the former default of its location."""
        if not board.is_default:
            return
        for other in records(connection, self.sql["list"], self.key(board.name), self.codec):
            if other.is_default and other.name != board.name:
                super().put(connection, replace(other, is_default=False))


def _parent(parent: str, level: Level) -> BoardName:
    return BoardName.parse(parent, LEVELS[LEVELS.index(level) - 1], of="parent")
