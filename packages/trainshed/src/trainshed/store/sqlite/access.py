"""Implements `store.access` on SQLite."""

import sqlite3
from collections.abc import Collection, Mapping, Sequence

import msgspec

from trainshed.core.units import Nanos
from trainshed.store.access import AuditRecord, AuditRow, Documents, chained
from trainshed.store.sqlite.connections import Reading, Writing, load_statements

_SQL = load_statements("access.sql")
_NEWEST = (1 << 63) - 1


class SqliteAccess:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    def load(self) -> tuple[Documents, Mapping[str, Nanos]]:
        def read(connection: sqlite3.Connection) -> tuple[Documents, Mapping[str, Nanos]]:
            rows = connection.execute(_SQL["all"])
            entries = {(kind, key): content for kind, key, content in rows}
            return entries, dict(connection.execute(_SQL["uses"]).fetchall())

        return self._snapshots.here(read)

    async def change(
        self,
        put: Documents,
        removed: Collection[tuple[str, str]],
        *,
        at: Nanos,
        audit: Sequence[tuple[str, AuditRecord]],
    ) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(_SQL["remove"], removed)
            connection.executemany(
                _SQL["put"], [(kind, key, content) for (kind, key), content in put.items()]
            )
            tokens = [(key,) for kind, key in removed if kind == "token"]
            connection.executemany(_SQL["forget_uses"], tokens)
            for project, record in audit:
                _add(connection, at, project, record)

        await self._writer.run("change_access", work)

    async def note_uses(self, uses: Mapping[str, Nanos]) -> None:
        rows = list(uses.items())
        await self._writer.run(
            "note_token_uses", lambda connection: connection.executemany(_SQL["note_use"], rows)
        )

    async def audited(
        self, project: str | None, before: int | None, limit: int
    ) -> tuple[AuditRow, ...]:
        parameters = {"project_id": project, "before": before or _NEWEST, "limit": limit}

        def read(connection: sqlite3.Connection) -> tuple[AuditRow, ...]:
            return tuple(
                AuditRow(seq, at, project_id, msgspec.json.decode(content, type=AuditRecord), hash_)
                for seq, at, project_id, content, hash_ in connection.execute(
                    _SQL["audit_page"], parameters
                )
            )

        return await self._snapshots.aside(read)


def _add(connection: sqlite3.Connection, at: Nanos, project: str, record: AuditRecord) -> None:
    content = msgspec.json.encode(record)
    row = connection.execute(_SQL["last_hash"]).fetchone()
    chain = chained(row[0] if row else b"", at, project, content)
    values = {"at": at, "project_id": project, "content": content, "hash": chain}
    connection.execute(_SQL["add_audit"], values)
