"""Implements secrets (`store.secrets.Secrets`) on SQLite."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence

from trainshed.core.errors import NotFound
from trainshed.core.secrets import SecretRef
from trainshed.core.units import Nanos
from trainshed.store.secrets import Sealed, SecretVersion, Stored
from trainshed.store.sqlite.connections import Reading, Writing, load_statements

_SQL = load_statements("secrets.sql")


class SqliteSecrets:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def add(
        self, project_id: str, name: str, created: Nanos, seal: Callable[[int], bytes]
    ) -> SecretVersion:
        key = {"project_id": project_id, "name": name}

        def work(connection: sqlite3.Connection) -> SecretVersion:
            ((version,),) = connection.execute(_SQL["next_number"], key).fetchall()
            stored = {"version": version, "created": created, "sealed": seal(version)}
            connection.execute(_SQL["insert_version"], key | stored)
            return SecretVersion(name, version, created)

        return await self._writer.run("add_secret", work)

    async def versions(self, project_id: str) -> tuple[SecretVersion, ...]:
        def read(connection: sqlite3.Connection) -> tuple[SecretVersion, ...]:
            rows = connection.execute(_SQL["versions"], {"project_id": project_id})
            return tuple([SecretVersion(*row) for row in rows])

        return await self._snapshots.aside(read)

    async def find(self, project_id: str, refs: Iterable[SecretRef]) -> Mapping[SecretRef, Sealed]:
        def read(connection: sqlite3.Connection) -> dict[SecretRef, Sealed]:
            found: dict[SecretRef, Sealed] = {}
            for ref in refs:
                asked = {"project_id": project_id, "name": ref.name, "version": ref.version}
                statement = _SQL["numbered" if ref.version else "newest"]
                row = connection.execute(statement, asked).fetchone()
                if row is not None:
                    found[ref] = Sealed(*row)
            return found

        return self._snapshots.here(read)

    async def has_any(self) -> bool:
        return self._snapshots.here(lambda c: bool(c.execute(_SQL["any"]).fetchone()[0]))

    async def reseal(
        self, seal: Callable[[Stored], bytes | None]
    ) -> tuple[int, tuple[Stored, ...]]:
        def work(connection: sqlite3.Connection) -> tuple[int, tuple[Stored, ...]]:
            left: list[Stored] = []
            # One by one, because together they may be large.
            keys = connection.execute(_SQL["all"]).fetchall()
            for project_id, name, version in keys:
                asked = {"project_id": project_id, "name": name, "version": version}
                ((_, content),) = connection.execute(_SQL["numbered"], asked).fetchall()
                stored = Stored(project_id, name, version, content)
                if (sealed := seal(stored)) is None:
                    left.append(stored)
                else:
                    connection.execute(_SQL["reseal"], asked | {"sealed": sealed})
            return len(keys) - len(left), tuple(left)

        return await self._writer.run("reseal_secrets", work)

    async def note_use(self, project_id: str, used: Sequence[tuple[str, int]], at: Nanos) -> None:
        rows = [
            {"project_id": project_id, "name": name, "version": version, "at": at}
            for name, version in used
        ]
        await self._writer.run(
            "note_secret_use", lambda connection: connection.executemany(_SQL["note_use"], rows)
        )

    async def delete(self, project_id: str, name: str, version: int = 0) -> None:
        statement = _SQL["delete_version" if version else "delete_secret"]
        asked = {"project_id": project_id, "name": name, "version": version}

        def work(connection: sqlite3.Connection) -> None:
            if not connection.execute(statement, asked).rowcount:
                which = f"version {version} of " if version else ""
                raise NotFound(
                    f"The project {project_id} has no {which}secret {name!r}; nothing was deleted. "
                    "`trainshed secrets list` shows those there are."
                )

        await self._writer.run("delete_secret", work)
