"""Stores notifications, secrets, datasets, curves and the access book in SQLite."""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from trainshed.access.book import Documents
from trainshed.core.curves import CurveSeries
from trainshed.core.datasets.records import Dataset, DatasetName
from trainshed.core.errors import NotFound
from trainshed.core.names import JobUid
from trainshed.core.notifications import BudgetNotice, Notification, Occasion
from trainshed.core.secrets import SecretRef
from trainshed.core.units import Nanos
from trainshed.store.audit import AuditRow, page
from trainshed.store.codec import CURVE_FILE, CURVE_SERIES, DATASET
from trainshed.store.records import Outgoing, Sealed, SecretVersion
from trainshed.store.sqlite.connections import Parameters, Port, load_statements
from trainshed.store.sqlite.tables import Resources
from trainshed.summaries.reading import FileProgress

_NOTIFICATIONS = load_statements("notifications.sql")


class Notifications(Port):
    """Stores notifications. Every write is durable when its call returns. A write for a notification that was
    removed has no effect."""

    async def waiting(self, limit: int) -> tuple[Outgoing, ...]:
        """Return at most `limit` notifications of each target, ordered by the due time of their next delivery
        attempt."""
        return self._snapshots.read_now(
            lambda c: tuple(map(_outgoing, c.execute(_NOTIFICATIONS["waiting"], {"limit": limit})))
        )

    async def count(self) -> tuple[int, int]:
        """Return two counts of undelivered notifications: all of them, and those for which a delivery attempt
        has failed."""
        return self._snapshots.read_now(lambda c: c.execute(_NOTIFICATIONS["count"]).fetchone())

    async def put_budgets(self, notices: Sequence[BudgetNotice]) -> None:
        """Put budget notifications into the outbox. Skip those that the target has already received."""

        def work(connection: sqlite3.Connection) -> None:
            for notice in notices:
                key = {"month": notice.month, "subject": notice.subject, "target": notice.notification.target}
                connection.execute(_NOTIFICATIONS["forget_budgets"], {"month": notice.month})
                if connection.execute(_NOTIFICATIONS["note_budget"], key).rowcount:
                    put(connection, (notice.notification,))

        await self._writer.run("put_budgets", work)

    async def put_off(self, id_: int, due: Nanos) -> None:
        """Record a failed attempt to deliver a notification. The next attempt is due at the time `due`."""
        await self._execute("put_off", {"id": id_, "due": due})

    async def remove(self, id_: int) -> None:
        """Remove a notification after its delivery, or after the last attempt failed."""
        await self._execute("remove", {"id": id_})

    async def _execute(self, statement: str, parameters: dict[str, Any]) -> None:
        await self._writer.run(
            f"notification_{statement}",
            lambda connection: connection.execute(_NOTIFICATIONS[statement], parameters),
        )


def put(connection: sqlite3.Connection, notifications: Iterable[Notification]) -> None:
    """Put notifications into the outbox. Call this function in a transaction."""
    connection.executemany(
        _NOTIFICATIONS["insert"],
        [
            {
                # UIDs of jobs start at 1, so 0 means no job.
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


class Secrets(Port):
    """Stores secrets. Every write is durable when its call returns. If a call raises an error, nothing was
    changed."""

    async def add(
        self, project_id: str, name: str, created: Nanos, seal: Callable[[int], bytes]
    ) -> SecretVersion:
        """Store the next version of a secret, or the first version of a new secret.

        `seal`: returns the encrypted value for a version number. It runs on the writer's thread. Its
        exceptions are raised here. Numbers of deleted versions are not used again.
        """
        key = {"project_id": project_id, "name": name}

        def work(connection: sqlite3.Connection) -> SecretVersion:
            ((version,),) = connection.execute(_SECRETS["next_number"], key).fetchall()
            stored = {"version": version, "created": created, "sealed": seal(version)}
            connection.execute(_SECRETS["insert_version"], key | stored)
            return SecretVersion(name, version, created)

        return await self._writer.run("add_secret", work)

    async def versions(self, project_id: str) -> tuple[SecretVersion, ...]:
        """Return all versions of a project's secrets, ordered by name. The newest version is first."""
        key = {"project_id": project_id}
        rows = await self._snapshots.read_async(
            lambda connection: connection.execute(_SECRETS["versions"], key).fetchall()
        )
        return tuple([SecretVersion(*row) for row in rows])

    async def find(self, project_id: str, refs: Iterable[SecretRef]) -> Mapping[SecretRef, Sealed]:
        """Return the secret versions in `refs` that exist. Cheap: one indexed lookup per version."""

        def read(connection: sqlite3.Connection) -> dict[SecretRef, Sealed]:
            sealed: dict[SecretRef, Sealed] = {}
            for ref in refs:
                parameters = {"project_id": project_id, "name": ref.name, "version": ref.version}
                statement = _SECRETS["numbered" if ref.version else "newest"]
                row = connection.execute(statement, parameters).fetchone()
                if row is not None:
                    sealed[ref] = Sealed(*row)
            return sealed

        return self._snapshots.read_now(read)

    async def has_any(self) -> bool:
        """Return whether any project has a secret."""
        return self._snapshots.read_now(lambda c: bool(c.execute(_SECRETS["any"]).fetchone()[0]))

    async def delete(self, project_id: str, name: str, version: int | None = None) -> None:
        """Delete one version of a secret. Without a version, delete all versions. Raise NotFound."""
        statement = _SECRETS["delete_secret" if version is None else "delete_version"]
        parameters = {"project_id": project_id, "name": name, "version": version}

        def work(connection: sqlite3.Connection) -> None:
            if not connection.execute(statement, parameters).rowcount:
                which = "" if version is None else f"version {version} of "
                raise NotFound(
                    f"The project {project_id} has no {which}secret {name!r}; nothing was deleted. "
                    "`trainshed secrets list` shows the existing secrets."
                )

        await self._writer.run("delete_secret", work)


class Datasets(Resources[DatasetName, Dataset]):
    sql = load_statements("datasets.sql")
    codec = DATASET

    def columns(self, record: Dataset) -> Parameters:
        return super().columns(record) | {"made": record.created}


_CURVES = load_statements("curves.sql")


class Curves(Port):
    """Stores curves. Every write is durable when its call returns. If a call raises an error, nothing was
    changed."""

    async def put(self, job: JobUid, progress: FileProgress, series: Sequence[CurveSeries]) -> bool:
        """Store the reading position of a file and changed series in one transaction. They replace the old
        values. The job then counts as unfinished until `finish` is called. Return False without any write if
        the job was deleted."""
        of_job = {"uid": job}
        file = of_job | {"path": progress.path, "record": CURVE_FILE.encode(progress)}
        rows = [
            of_job | {"run": line.run, "tag": line.tag, "record": CURVE_SERIES.encode(line)}
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
        """Return the job's files by path. The result is empty if the job does not exist."""
        return await self._records(_CURVES["files"], {"uid": job}, CURVE_FILE)

    async def series(self, job: JobUid) -> tuple[CurveSeries, ...]:
        """Return the job's series by run and tag. The result is empty if the job does not exist."""
        return await self._records(_CURVES["series"], {"uid": job}, CURVE_SERIES)

    async def finish(self, job: JobUid) -> None:
        """Record that a job has finished and that its files were read completely."""
        await self._writer.run("finish", lambda c: c.execute(_CURVES["finish"], {"uid": job}))

    async def unfinished_jobs(self) -> tuple[JobUid, ...]:
        """Return the finished jobs whose files may not have been read completely."""
        rows = await self._snapshots.read_async(lambda c: c.execute(_CURVES["unfinished"]).fetchall())
        return tuple([JobUid(uid) for (uid,) in rows])


_ACCESS = load_statements("access.sql")


class Access(Port):
    """Stores the access book: tokens, roles, projects, service accounts and their keys. Every write is
    durable when its call returns. If a call raises an error, nothing was changed."""

    def load(self) -> tuple[Documents, Mapping[str, Nanos]]:
        """Return all entries, and the last-use time of each token by its digest. Blocks."""

        def read(connection: sqlite3.Connection) -> tuple[Documents, Mapping[str, Nanos]]:
            rows = connection.execute(_ACCESS["all"])
            entries = {(kind, key): content for kind, key, content in rows}
            return entries, dict(connection.execute(_ACCESS["uses"]).fetchall())

        return self._snapshots.read_now(read)

    async def change(self, put: Documents, removed: Collection[tuple[str, str]]) -> None:
        """Write and remove entries, in one transaction."""

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(_ACCESS["remove"], removed)
            connection.executemany(
                _ACCESS["put"], [(kind, key, content) for (kind, key), content in put.items()]
            )
            tokens = [(key,) for kind, key in removed if kind == "token"]
            connection.executemany(_ACCESS["forget_uses"], tokens)

        await self._writer.run("change_access", work)

    async def note_uses(self, uses: Mapping[str, Nanos]) -> None:
        """Record the last-use times of tokens, by digest."""
        rows = list(uses.items())
        await self._writer.run(
            "note_token_uses", lambda connection: connection.executemany(_ACCESS["note_use"], rows)
        )

    async def audit_rows(self, project: str | None, before: int | None, limit: int) -> tuple[AuditRow, ...]:
        """Return a page of the audit log (`store.audit.page`)."""
        return await self._snapshots.read_async(lambda connection: page(connection, project, before, limit))
