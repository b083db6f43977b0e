"""The access book and the audit record (`store.audit`) in SQLite."""

import sqlite3
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

import msgspec

from trainshed.access.book import Documents
from trainshed.core.units import Nanos
from trainshed.store.audit import AuditRecord, AuditRow, chained, under_way
from trainshed.store.sqlite.connections import Port, load_statements
from trainshed.wire.status import StatusCode

_SQL = load_statements("access.sql")
_NEWEST = (1 << 63) - 1
_KEPT: Final = 400 * 24 * 3600 * 10**9
"""Nanoseconds that records are kept: a year, and a month to notice it."""
T = TypeVar("T")


class Access(Port):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    def load(self) -> tuple[Documents, Mapping[str, Nanos]]:
        """Return all entries, and when each token was last shown, by its digest. Blocks."""

        def read(connection: sqlite3.Connection) -> tuple[Documents, Mapping[str, Nanos]]:
            rows = connection.execute(_SQL["all"])
            entries = {(kind, key): content for kind, key, content in rows}
            return entries, dict(connection.execute(_SQL["uses"]).fetchall())

        return self._snapshots.here(read)

    async def change(self, put: Documents, removed: Collection[tuple[str, str]]) -> None:
        """Write and remove entries, in one transaction."""

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(_SQL["remove"], removed)
            connection.executemany(
                _SQL["put"], [(kind, key, content) for (kind, key), content in put.items()]
            )
            tokens = [(key,) for kind, key in removed if kind == "token"]
            connection.executemany(_SQL["forget_uses"], tokens)

        await self._writer.run("change_access", work)

    async def note_uses(self, uses: Mapping[str, Nanos]) -> None:
        """Record when tokens were last shown, by their digests."""
        rows = list(uses.items())
        await self._writer.run(
            "note_token_uses", lambda connection: connection.executemany(_SQL["note_use"], rows)
        )

    async def audited(
        self, project: str | None, before: int | None, limit: int
    ) -> tuple[AuditRow, ...]:
        """Return the newest records with a lower `seq` than `before`, newest first; those of one project with
        `project`."""
        parameters = {"project_id": project, "before": before or _NEWEST, "limit": limit}

        def read(connection: sqlite3.Connection) -> tuple[AuditRow, ...]:
            return tuple(_row(row) for row in connection.execute(_SQL["audit_page"], parameters))

        return await self._snapshots.aside(read)


def _row(row: tuple[int, Nanos, str, bytes, bytes, bytes | None]) -> AuditRow:
    """Return a record; if the hash does not fit, because it was changed or the one before it is gone, it says
    so."""
    seq, at, project, content, hash_, before = row
    try:
        record = msgspec.json.decode(content, type=AuditRecord)
    except msgspec.DecodeError:
        record = AuditRecord("", "")
    is_oldest = before is None and seq > 1
    if not is_oldest and hash_ != chained(before or b"", at, project, content):
        record.status = StatusCode.DATA_LOSS.number
    return AuditRow(seq, at, project, record, hash_)


def recorded(work: Callable[[sqlite3.Connection], T]) -> Callable[[sqlite3.Connection], T]:
    """Return `work`, which then also adds the record of the call under way. When it is committed, the caller
    has to say so."""
    call = under_way()
    if call is None:
        return work

    def with_record(connection: sqlite3.Connection) -> T:
        result = work(connection)
        content = msgspec.json.encode(call.record)
        row = connection.execute(_SQL["last_hash"]).fetchone()
        chain = chained(row[0] if row else b"", call.at, call.project, content)
        values = {"at": call.at, "project_id": call.project, "content": content, "hash": chain}
        connection.execute(_SQL["add_audit"], values)
        connection.execute(_SQL["forget_audit"], {"before": call.at - _KEPT})
        return result

    return with_record
