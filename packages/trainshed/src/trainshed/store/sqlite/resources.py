"""Notifications, secrets, datasets, curves and the access book in SQLite."""

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
    """Every write is durable when its call returns. It does nothing if the notification was
    removed in between."""

    async def waiting(self, limit: int) -> tuple[Outgoing, ...]:
        """Return the notifications that are to be tried next, ascending by `due`."""
        return self._snapshots.here(
            lambda c: tuple(map(_outgoing, c.execute(_NOTIFICATIONS["waiting"], {"limit": limit})))
        )

    async def count(self) -> tuple[int, int]:
        """Return how many notifications wait, and how many of these were tried already."""
        return self._snapshots.here(lambda c: c.execute(_NOTIFICATIONS["count"]).fetchone())

    async def put_budgets(self, notices: Sequence[BudgetNotice]) -> None:
        """Put into the outbox what targets have not heard yet of budgets."""

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
        """Record a try, and that the next one is at `due`."""
        await self._execute("put_off", {"id": id_, "due": due})

    async def remove(self, id_: int) -> None:
        """Remove a notification that was delivered or given up."""
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


class Secrets(Port):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def add(
        self, project_id: str, name: str, created: Nanos, seal: Callable[[int], bytes]
    ) -> SecretVersion:
        """Store the next version of a secret, or the first one of a new secret. `seal` is called with its
        number and returns what is stored; it runs in the writer's thread, and its exceptions are raised here.
        Numbers of deleted versions are not used again."""
        key = {"project_id": project_id, "name": name}

        def work(connection: sqlite3.Connection) -> SecretVersion:
            ((version,),) = connection.execute(_SECRETS["next_number"], key).fetchall()
            stored = {"version": version, "created": created, "sealed": seal(version)}
            connection.execute(_SECRETS["insert_version"], key | stored)
            return SecretVersion(name, version, created)

        return await self._writer.run("add_secret", work)

    async def versions(self, project_id: str) -> tuple[SecretVersion, ...]:
        """Return all versions of a project's secrets, by name, newest version first."""
        key = {"project_id": project_id}
        rows = await self._snapshots.aside(
            lambda connection: connection.execute(_SECRETS["versions"], key).fetchall()
        )
        return tuple([SecretVersion(*row) for row in rows])

    async def find(self, project_id: str, refs: Iterable[SecretRef]) -> Mapping[SecretRef, Sealed]:
        """Return those of `refs` that exist. Cheap: a point lookup each."""

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
        """Whether any project has a secret."""
        return self._snapshots.here(lambda c: bool(c.execute(_SECRETS["any"]).fetchone()[0]))

    async def delete(self, project_id: str, name: str, version: int | None = None) -> None:
        """Delete one version, by default all of them. Raises NotFound."""
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
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def put(self, job: JobUid, progress: FileProgress, series: Sequence[CurveSeries]) -> bool:
        """Store how far a file was read, and some series of it, each replacing what is stored of it, in one
        transaction. From then on the job may have files that were not read to their ends. Returns False if
        the job was deleted; then nothing is stored."""
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
        """Return the files by path; none for a job that does not exist."""
        return await self._records(_CURVES["files"], {"uid": job}, CURVE_FILE)

    async def series(self, job: JobUid) -> tuple[CurveSeries, ...]:
        """Return the series by run and tag; none for a job that does not exist."""
        return await self._records(_CURVES["series"], {"uid": job}, CURVE_SERIES)

    async def finish(self, job: JobUid) -> None:
        """Record that a job is over and its files were read to their ends."""
        await self._writer.run("finish", lambda c: c.execute(_CURVES["finish"], {"uid": job}))

    async def unfinished(self) -> tuple[JobUid, ...]:
        """Return the jobs that are over and have files that may not have been read to their ends."""
        rows = await self._snapshots.aside(lambda c: c.execute(_CURVES["unfinished"]).fetchall())
        return tuple([JobUid(uid) for (uid,) in rows])


_ACCESS = load_statements("access.sql")


class Access(Port):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    def load(self) -> tuple[Documents, Mapping[str, Nanos]]:
        """Return all entries, and when each token was last shown, by its digest. Blocks."""

        def read(connection: sqlite3.Connection) -> tuple[Documents, Mapping[str, Nanos]]:
            rows = connection.execute(_ACCESS["all"])
            entries = {(kind, key): content for kind, key, content in rows}
            return entries, dict(connection.execute(_ACCESS["uses"]).fetchall())

        return self._snapshots.here(read)

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
        """Record when tokens were last shown, by their digests."""
        rows = list(uses.items())
        await self._writer.run(
            "note_token_uses", lambda connection: connection.executemany(_ACCESS["note_use"], rows)
        )

    async def audited(
        self, project: str | None, before: int | None, limit: int
    ) -> tuple[AuditRow, ...]:
        """See `store.audit.page`."""
        return await self._snapshots.aside(
            lambda connection: page(connection, project, before, limit)
        )
