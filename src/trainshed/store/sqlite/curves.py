"""Implements curves of jobs (`store.curves.Curves`) on SQLite."""

import sqlite3
from collections.abc import Sequence

from trainshed.core.names import JobUid
from trainshed.core.tensorboards.curves import CurveSeries
from trainshed.store.codec import (
    decode_curve_file,
    decode_curve_series,
    encode_curve_file,
    encode_curve_series,
)
from trainshed.store.sqlite.connections import Reading, Writing, load_statements
from trainshed.summaries.reading import FileProgress

_SQL = load_statements("curves.sql")


class SqliteCurves:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def put(self, job: JobUid, progress: FileProgress, series: Sequence[CurveSeries]) -> bool:
        of_job = {"uid": job}
        file = of_job | {"path": progress.path, "record": encode_curve_file(progress)}
        rows = [
            of_job | {"run": one.run, "tag": one.tag, "record": encode_curve_series(one)}
            for one in series
        ]

        def work(connection: sqlite3.Connection) -> bool:
            if connection.execute(_SQL["is_there"], of_job).fetchone() is None:
                return False
            connection.execute(_SQL["open"], of_job)
            connection.execute(_SQL["put_file"], file)
            connection.executemany(_SQL["put_series"], rows)
            return True

        return await self._writer.run("put", work)

    async def files(self, job: JobUid) -> tuple[FileProgress, ...]:
        def read(connection: sqlite3.Connection) -> tuple[FileProgress, ...]:
            rows = connection.execute(_SQL["files"], {"uid": job})
            return tuple([decode_curve_file(record) for (record,) in rows])

        return await self._snapshots.aside(read)

    async def series(self, job: JobUid) -> tuple[CurveSeries, ...]:
        def read(connection: sqlite3.Connection) -> tuple[CurveSeries, ...]:
            rows = connection.execute(_SQL["series"], {"uid": job})
            return tuple([decode_curve_series(record) for (record,) in rows])

        return await self._snapshots.aside(read)

    async def finish(self, job: JobUid) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute(_SQL["finish"], {"uid": job})

        await self._writer.run("finish", work)

    async def unfinished(self) -> tuple[JobUid, ...]:
        def read(connection: sqlite3.Connection) -> tuple[JobUid, ...]:
            return tuple([JobUid(uid) for (uid,) in connection.execute(_SQL["unfinished"])])

        return await self._snapshots.aside(read)
