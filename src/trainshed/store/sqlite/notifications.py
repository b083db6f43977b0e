"""Implements the outbox (`store.notifications.Notifications`) on SQLite."""

import sqlite3
from collections.abc import Iterable
from typing import Any

from trainshed.core.names import JobUid
from trainshed.core.notifications import Notification, Occasion
from trainshed.core.units import Nanos
from trainshed.store.notifications import Outgoing
from trainshed.store.sqlite.connections import Reading, Writing, load_statements

_SQL = load_statements("notifications.sql")


class SqliteNotifications:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def waiting(self, limit: int) -> tuple[Outgoing, ...]:
        def read(connection: sqlite3.Connection) -> tuple[Outgoing, ...]:
            return tuple(map(_outgoing, connection.execute(_SQL["waiting"], {"limit": limit})))

        return self._snapshots.here(read)

    async def count(self) -> tuple[int, int]:
        def read(connection: sqlite3.Connection) -> tuple[int, int]:
            waiting, failing = connection.execute(_SQL["count"]).fetchone()
            return waiting, failing

        return self._snapshots.here(read)

    async def put_off(self, id_: int, due: Nanos) -> None:
        await self._execute("put_off", {"id": id_, "due": due})

    async def remove(self, id_: int) -> None:
        await self._execute("remove", {"id": id_})

    async def _execute(self, statement: str, parameters: dict[str, Any]) -> None:
        await self._writer.run(
            f"notification_{statement}",
            lambda connection: connection.execute(_SQL[statement], parameters),
        )


def put(connection: sqlite3.Connection, notifications: Iterable[Notification]) -> None:
    """Put notifications into the outbox, within a transaction."""
    connection.executemany(
        _SQL["insert"],
        [
            {
                "job_uid": each.job_uid,
                "target": each.target,
                "occasion": each.occasion.value,
                "created": each.created,
                "content": each.content,
            }
            for each in notifications
        ],
    )


def _outgoing(row: tuple[Any, ...]) -> Outgoing:
    id_, job_uid, target, occasion, created, content, due, tries = row
    told = Notification(JobUid(job_uid), target, Occasion(occasion), created, content)
    return Outgoing(id_, told, due, tries)
