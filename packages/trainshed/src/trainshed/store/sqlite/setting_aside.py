"""Moves records that cannot be read out of their tables, into a table of their own (ADR 44).

A record is identified by its bytes: all rows with the same bytes are equally unreadable, and no statement has
to state a key.
"""

import base64
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from trainshed.core.errors import Unavailable
from trainshed.core.units import Nanos
from trainshed.store.codec import UnreadableRecord
from trainshed.store.records import RecordSetAside
from trainshed.store.sqlite.connections import open_writer
from trainshed.telemetry.lines import about

T = TypeVar("T")

log = logging.getLogger(__name__)

_LABELS = {
    "jobs": ("project_id", "job_id"),
    "studies": ("project_id", "display_name"),
    "intents": ("job_uid",),
    "metadata_nodes": ("project_id", "location", "store_id", "kind", "node_id"),
}


SettingAside = Callable[[UnreadableRecord], None]
"""Sets a record aside that cannot be read, durably. Blocks. Raises Unavailable."""


class FileSettingAside:
    """Sets records aside by a connection of its own to the database file; callable from any thread."""

    def __init__(self, database: Path) -> None:
        self._database = database
        #: Called with each record that was set aside, on the thread that found it.
        self.listener: Callable[[RecordSetAside], object] = lambda _: None

    def __call__(self, bad: UnreadableRecord) -> None:
        try:
            with closing(open_writer(self._database)) as connection:
                moved = set_aside(connection, bad, time.time_ns())
        except sqlite3.Error as failure:
            raise Unavailable(f"{bad}, and could not be set aside: {failure}") from failure
        for record in moved:
            self.listener(record)


def past_bad_records(work: Callable[[], T], set_aside: SettingAside) -> T:
    """Return the result of `work`, repeating it after each record that it cannot read is set aside. Raises
    Unavailable (a record cannot be set aside)."""
    last: bytes | None = None
    while True:
        try:
            return work()
        except UnreadableRecord as bad:
            if bad.raw == last:
                raise Unavailable(f"{bad}, and it cannot be set aside") from bad
            set_aside(bad)
            last = bad.raw


def set_aside(
    connection: sqlite3.Connection, bad: UnreadableRecord, now: Nanos
) -> list[RecordSetAside]:
    """Move every row with these bytes, in one transaction, and return the records. Rows that were changed or
    removed since they were read stay."""
    moved: list[tuple[RecordSetAside, dict[str, Any]]] = []
    table, column = bad.table, bad.column
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Table and column names come from our code, never from a client.
        cursor = connection.execute(f"SELECT * FROM {table} WHERE {column} = ?", (bad.raw,))
        names = [name for name, *_ in cursor.description]
        query = "SELECT name FROM pragma_table_info(?) WHERE pk ORDER BY pk"
        keys = [name for (name,) in connection.execute(query, (table,))]
        for values in cursor.fetchall():
            row = dict(zip(names, values, strict=True))
            record = RecordSetAside(
                table, _joined(row, keys), _joined(row, _LABELS.get(table, ())), bad.cause, now
            )
            connection.execute(
                "INSERT INTO set_aside (source, key, label, cause, at, row) VALUES (?, ?, ?, ?, ?, ?)",
                (table, record.key, record.label, record.cause, now, _encoded(row)),
            )
            moved.append((record, row))
        connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (bad.raw,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    for record, row in moved:
        uid = row["uid"] if table == "jobs" else row.get("job_uid")
        (log if uid is None else about(log, uid)).error("record set aside: %s", record)
    return [record for record, _ in moved]


def all_set_aside(connection: sqlite3.Connection) -> tuple[RecordSetAside, ...]:
    """Return every record that was set aside, in that order."""
    rows = connection.execute("SELECT source, key, label, cause, at FROM set_aside ORDER BY id")
    return tuple([RecordSetAside(*row) for row in rows])


def job_set_aside(
    connection: sqlite3.Connection, is_it: Callable[[RecordSetAside], bool]
) -> RecordSetAside | None:
    """Return the newest job that was set aside and that `is_it` accepts."""
    rows = connection.execute(
        "SELECT source, key, label, cause, at FROM set_aside WHERE source = 'jobs' ORDER BY id DESC"
    )
    return next((record for row in rows if is_it(record := RecordSetAside(*row))), None)


def _joined(row: dict[str, Any], columns: Sequence[str]) -> str:
    return "/".join(str(row[column]) for column in columns)


def _encoded(row: dict[str, Any]) -> bytes:
    return msgspec.json.encode(
        {
            name: {"base64": base64.b64encode(value).decode()}
            if isinstance(value, bytes)
            else value
            for name, value in row.items()
        }
    )
