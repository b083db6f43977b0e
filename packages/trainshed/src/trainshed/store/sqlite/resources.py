"""Implements the smaller ports of `store.resources` on SQLite: operations, notifications, secrets, datasets
and curves."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from trainshed.core.datasets.records import Dataset, DatasetName
from trainshed.core.errors import AlreadyExists, NotFound
from trainshed.core.names import JobUid
from trainshed.core.notifications import BudgetNotice, Notification, Occasion
from trainshed.core.secrets import SecretRef
from trainshed.core.tensorboards.curves import CurveSeries
from trainshed.core.units import Nanos
from trainshed.store.codec import (
    decode_curve_file,
    decode_curve_series,
    decode_dataset,
    encode_curve_file,
    encode_curve_series,
    encode_dataset,
)
from trainshed.store.records import Operation, OperationKind
from trainshed.store.resources import Outgoing, Sealed, SecretVersion, Stored
from trainshed.store.sqlite import writes
from trainshed.store.sqlite.connections import Reading, Writing, load_statements
from trainshed.store.sqlite.rows import Parameters, rows_after
from trainshed.store.sqlite.writes import insert_operation
from trainshed.summaries.reading import FileProgress


class SqliteOperations:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def begin(self, operation: Operation) -> None:
        await self._writer.run(
            "begin_operation", lambda connection: writes.insert_operation(connection, operation)
        )

    async def running(self, kind: OperationKind) -> tuple[Operation, ...]:
        operations = self._snapshots.here(
            lambda connection: writes.running_operations(connection, None)
        )
        return tuple(operation for operation in operations if operation.kind is kind)

    async def finish(self, operation: Operation) -> bool:
        return await self._writer.run(
            "finish_operation", lambda connection: writes.finish_operation(connection, operation)
        )


_NOTIFICATIONS = load_statements("notifications.sql")


class SqliteNotifications:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def waiting(self, limit: int) -> tuple[Outgoing, ...]:
        def read(connection: sqlite3.Connection) -> tuple[Outgoing, ...]:
            return tuple(
                map(_outgoing, connection.execute(_NOTIFICATIONS["waiting"], {"limit": limit}))
            )

        return self._snapshots.here(read)

    async def count(self) -> tuple[int, int]:
        def read(connection: sqlite3.Connection) -> tuple[int, int]:
            waiting, failing = connection.execute(_NOTIFICATIONS["count"]).fetchone()
            return waiting, failing

        return self._snapshots.here(read)

    async def put_budgets(self, notices: Sequence[BudgetNotice]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            for notice in notices:
                key = {
                    "month": notice.month,
                    "subject": notice.subject,
                    "target": notice.notification.target,
                }
                connection.execute(_NOTIFICATIONS["forget_budgets"], {"month": notice.month})
                if connection.execute(_NOTIFICATIONS["note_budget"], key).rowcount:
                    put(connection, (notice.notification,))

        await self._writer.run("put_budgets", work)

    async def put_off(self, id_: int, due: Nanos) -> None:
        await self._execute("put_off", {"id": id_, "due": due})

    async def remove(self, id_: int) -> None:
        await self._execute("remove", {"id": id_})

    async def _execute(self, statement: str, parameters: dict[str, Any]) -> None:
        await self._writer.run(
            f"notification_{statement}",
            lambda connection: connection.execute(_NOTIFICATIONS[statement], parameters),
        )


def put(connection: sqlite3.Connection, notifications: Iterable[Notification]) -> None:
    """Put notifications into the outbox, within a transaction."""
    connection.executemany(
        _NOTIFICATIONS["insert"],
        [
            {
                # Jobs count from 1.
                "job_uid": notification.job_uid or 0,
                "target": notification.target,
                "occasion": notification.occasion.value,
                "created": notification.created,
                "content": notification.content,
            }
            for notification in notifications
        ],
    )


def _outgoing(row: tuple[Any, ...]) -> Outgoing:
    id_, job_uid, target, occasion, created, content, due, tries = row
    notification = Notification(
        JobUid(job_uid) if job_uid else None, target, Occasion(occasion), created, content
    )
    return Outgoing(id_, notification, due, tries)


_SECRETS = load_statements("secrets.sql")


class SqliteSecrets:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def add(
        self, project_id: str, name: str, created: Nanos, seal: Callable[[int], bytes]
    ) -> SecretVersion:
        key = {"project_id": project_id, "name": name}

        def work(connection: sqlite3.Connection) -> SecretVersion:
            ((version,),) = connection.execute(_SECRETS["next_number"], key).fetchall()
            stored = {"version": version, "created": created, "sealed": seal(version)}
            connection.execute(_SECRETS["insert_version"], key | stored)
            return SecretVersion(name, version, created)

        return await self._writer.run("add_secret", work)

    async def versions(self, project_id: str) -> tuple[SecretVersion, ...]:
        def read(connection: sqlite3.Connection) -> tuple[SecretVersion, ...]:
            rows = connection.execute(_SECRETS["versions"], {"project_id": project_id})
            return tuple([SecretVersion(*row) for row in rows])

        return await self._snapshots.aside(read)

    async def find(self, project_id: str, refs: Iterable[SecretRef]) -> Mapping[SecretRef, Sealed]:
        def read(connection: sqlite3.Connection) -> dict[SecretRef, Sealed]:
            sealed: dict[SecretRef, Sealed] = {}
            for ref in refs:
                parameters = {"project_id": project_id, "name": ref.name, "version": ref.version}
                statement = _SECRETS["numbered" if ref.version else "newest"]
                row = connection.execute(statement, parameters).fetchone()
                if row is not None:
                    sealed[ref] = Sealed(*row)
            return sealed

        return self._snapshots.here(read)

    async def has_any(self) -> bool:
        return self._snapshots.here(lambda c: bool(c.execute(_SECRETS["any"]).fetchone()[0]))

    async def reseal(
        self, seal: Callable[[Stored], bytes | None]
    ) -> tuple[int, tuple[Stored, ...]]:
        def work(connection: sqlite3.Connection) -> tuple[int, tuple[Stored, ...]]:
            left: list[Stored] = []
            # One by one, because together they may be large.
            keys = connection.execute(_SECRETS["all"]).fetchall()
            for project_id, name, version in keys:
                parameters = {"project_id": project_id, "name": name, "version": version}
                ((_, content),) = connection.execute(_SECRETS["numbered"], parameters).fetchall()
                stored = Stored(project_id, name, version, content)
                if (sealed := seal(stored)) is None:
                    left.append(stored)
                else:
                    connection.execute(_SECRETS["reseal"], parameters | {"sealed": sealed})
            return len(keys) - len(left), tuple(left)

        return await self._writer.run("reseal_secrets", work)

    async def note_use(self, project_id: str, used: Sequence[tuple[str, int]], at: Nanos) -> None:
        rows = [
            {"project_id": project_id, "name": name, "version": version, "at": at}
            for name, version in used
        ]
        await self._writer.run(
            "note_secret_use", lambda connection: connection.executemany(_SECRETS["note_use"], rows)
        )

    async def delete(self, project_id: str, name: str, version: int = 0) -> None:
        statement = _SECRETS["delete_version" if version else "delete_secret"]
        parameters = {"project_id": project_id, "name": name, "version": version}

        def work(connection: sqlite3.Connection) -> None:
            if not connection.execute(statement, parameters).rowcount:
                which = f"version {version} of " if version else ""
                raise NotFound(
                    f"The project {project_id} has no {which}secret {name!r}; nothing was deleted. "
                    "`trainshed secrets list` shows those there are."
                )

        await self._writer.run("delete_secret", work)


_DATASETS = load_statements("datasets.sql")


class SqliteDatasets:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def create(self, dataset: Dataset, operation: Operation) -> None:
        parameters = _columns(dataset)

        def work(connection: sqlite3.Connection) -> None:
            if connection.execute(_DATASETS["insert"], parameters).rowcount != 1:
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
            rows = rows_after(connection, _DATASETS, "datasets", place, after=after, limit=limit)
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
            connection.execute(_DATASETS["replace"], _columns(new))
            if operation is not None:
                insert_operation(connection, operation)
            return new

        return await self._writer.run("change", work)

    async def delete(self, name: DatasetName, operation: Operation) -> None:
        def work(connection: sqlite3.Connection) -> None:
            if connection.execute(_DATASETS["delete"], _key(name)).rowcount != 1:
                raise _missing(name)
            insert_operation(connection, operation)

        await self._writer.run("delete", work)


def _dataset(connection: sqlite3.Connection, name: DatasetName) -> Dataset:
    row = connection.execute(_DATASETS["dataset"], _key(name)).fetchone()
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


_CURVES = load_statements("curves.sql")


class SqliteCurves:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def put(self, job: JobUid, progress: FileProgress, series: Sequence[CurveSeries]) -> bool:
        of_job = {"uid": job}
        file = of_job | {"path": progress.path, "record": encode_curve_file(progress)}
        rows = [
            of_job | {"run": line.run, "tag": line.tag, "record": encode_curve_series(line)}
            for line in series
        ]

        def work(connection: sqlite3.Connection) -> bool:
            if connection.execute(_CURVES["is_there"], of_job).fetchone() is None:
                return False
            connection.execute(_CURVES["open"], of_job)
            connection.execute(_CURVES["put_file"], file)
            connection.executemany(_CURVES["put_series"], rows)
            return True

        return await self._writer.run("put", work)

    async def files(self, job: JobUid) -> tuple[FileProgress, ...]:
        def read(connection: sqlite3.Connection) -> tuple[FileProgress, ...]:
            rows = connection.execute(_CURVES["files"], {"uid": job})
            return tuple([decode_curve_file(record) for (record,) in rows])

        return await self._snapshots.aside(read)

    async def series(self, job: JobUid) -> tuple[CurveSeries, ...]:
        def read(connection: sqlite3.Connection) -> tuple[CurveSeries, ...]:
            rows = connection.execute(_CURVES["series"], {"uid": job})
            return tuple([decode_curve_series(record) for (record,) in rows])

        return await self._snapshots.aside(read)

    async def finish(self, job: JobUid) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute(_CURVES["finish"], {"uid": job})

        await self._writer.run("finish", work)

    async def unfinished(self) -> tuple[JobUid, ...]:
        def read(connection: sqlite3.Connection) -> tuple[JobUid, ...]:
            return tuple([JobUid(uid) for (uid,) in connection.execute(_CURVES["unfinished"])])

        return await self._snapshots.aside(read)
