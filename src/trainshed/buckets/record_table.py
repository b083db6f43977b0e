"""The records of objects once more, by the objects' names, in a file that every way of copying takes along.

A second copy: what counts is attached to the object's file. It is asked only in a directory that was copied, so what cannot
be written here fails no request, and what cannot be read begins anew.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

FILE = "records.db"
_BUSY_TIMEOUT_S = 5
_SCHEMA = (
    "PRAGMA journal_mode = WAL",
    # A crash of the machine may take the last rows: the records themselves are durable.
    "PRAGMA synchronous = NORMAL",
    "CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, epoch TEXT NOT NULL, record BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS complete (epoch TEXT PRIMARY KEY) WITHOUT ROWID",
)


class RecordTable:
    """Encoded records by key (``BUCKET/NAME``) with their epochs. Blocking; safe to use from several threads and processes."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = _open(path)

    def get(self, key: str) -> bytes | None:
        """The record of an object."""
        row = self._first("SELECT record FROM records WHERE key = ?", (key,))
        return None if row is None else row[0]

    def put(self, key: str, epoch: str, record: bytes) -> None:
        """Keep an object's record in place of an earlier one."""
        self._do("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (key, epoch, record))

    def put_missing(self, key: str, epoch: str, record: bytes) -> None:
        """Keep a record unless there is one of this epoch, which is newer."""
        self._do(
            "INSERT INTO records VALUES (?1, ?2, ?3) ON CONFLICT (key) DO UPDATE "
            "SET epoch = ?2, record = ?3 WHERE epoch <> ?2",
            (key, epoch, record),
        )

    def drop(self, key: str) -> None:
        """Forget the record of an object that is gone."""
        self._do("DELETE FROM records WHERE key = ?", (key,))

    def is_complete(self, epoch: str) -> bool:
        """Whether every object has been looked at in this epoch."""
        return self._first("SELECT 1 FROM complete WHERE epoch = ?", (epoch,)) is not None

    def completed(self, epoch: str) -> None:
        """Every object has been looked at."""
        self._do("INSERT OR IGNORE INTO complete VALUES (?)", (epoch,))

    def count(self) -> int:
        """How many records there are; 0 if that cannot be told."""
        row = self._first("SELECT count(*) FROM records", ())
        return row[0] if row else 0

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            with self._lock:
                self._connection.close()

    def _first(self, statement: str, values: tuple[Any, ...]) -> Any:
        return self._guarded(lambda table: table.execute(statement, values).fetchone())

    def _do(self, statement: str, values: tuple[Any, ...]) -> None:
        self._guarded(lambda table: table.execute(statement, values))

    def _guarded(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        if self._connection is None:
            return None
        try:
            with self._lock:
                return work(self._connection)
        except sqlite3.Error as error:
            log.warning("buckets: %s is not kept up to date: %s", FILE, error)
            return None


def _open(path: Path) -> sqlite3.Connection | None:
    try:
        return _connect(path)
    except sqlite3.OperationalError as error:
        # Not the file's fault: no room, no permission, no handles.
        log.warning(
            "buckets: %s cannot be opened: %s. Copies of the buckets may lose metadata", path, error
        )
        return None
    except sqlite3.DatabaseError as error:
        aside = path.with_name(f"{path.name}.damaged")
        log.warning(
            "buckets: %s is damaged (%s); it is made anew, the old one is %s", path, error, aside
        )
        path.replace(aside)
        for end in ("-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        for statement in _SCHEMA:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection
