"""Stores the noncurrent generations (replaced or deleted content) of objects in buckets with versioning.

A table contains their records. Their contents are in a directory next to the table, outside the visible tree.

`keep` adds a row and then creates a hard link to the live file. Only then may the caller replace or delete
that file. A generation is therefore live, noncurrent or both at any time. A row is valid if its content
exists and the live object has another generation (ADR 168).
"""

import hashlib
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from trainshed.buckets.content import BLOCK
from trainshed.buckets.disk.records import connect
from trainshed.buckets.errors import Unavailable, no_such_object
from trainshed.buckets.port import FileIdentity, ObjectRecord
from trainshed.core.units import Nanos
from trainshed.replica.system import durable

TABLE = "generations.db"
CONTENTS = "generations"
_SCHEMA = (
    "PRAGMA journal_mode = WAL",
    # A row must be on disk before its file is removed from the tree.
    "PRAGMA synchronous = FULL",
    "CREATE TABLE IF NOT EXISTS generations (bucket TEXT NOT NULL, name BLOB NOT NULL, "
    "generation INTEGER NOT NULL, record BLOB NOT NULL, PRIMARY KEY (bucket, name, generation)) "
    "WITHOUT ROWID",
)


class Generations:
    """The noncurrent generations of all buckets. Blocking. Thread-safe.

    A caller that changes the generations of an object must hold the lock of the object's path
    (`ObjectFiles.lock`). Raises Unavailable if the table cannot be read or written.
    """

    def __init__(self, state: Path) -> None:
        self._table = state / TABLE
        self._contents = state / CONTENTS
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def keep(self, bucket: str, name: str, live: int, record: ObjectRecord, now: Nanos) -> None:
        """Store the live generation durably as a noncurrent generation, before the caller replaces or deletes
        the live file. `live`: the open live file. After a failure, the caller may repeat the call."""
        self.note(bucket, name, replace(record, deleted_ns=now))
        directory = self._directory(bucket)
        directory.mkdir(parents=True, exist_ok=True)
        _preserve(live, self.content(bucket, name, record.generation))
        durable.sync_directory(str(directory))

    def note(self, bucket: str, name: str, record: ObjectRecord) -> None:
        values = (bucket, name.encode(), record.generation, msgspec.json.encode(record))
        self._do("INSERT OR REPLACE INTO generations VALUES (?, ?, ?, ?)", values)

    def open(self, bucket: str, name: str, generation: int) -> tuple[int, ObjectRecord]:
        """Open the content of a generation. The caller closes it. Raises NotFound."""
        path = self.content(bucket, name, generation)
        for record in self.of(bucket, name):
            if record.generation == generation:
                with suppress(FileNotFoundError):
                    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                    return fd, replace(record, file=FileIdentity.of(os.fstat(fd)))
        raise no_such_object(bucket, f"{name}#{generation}")

    def of(self, bucket: str, name: str) -> list[ObjectRecord]:
        """Return the records of an object's noncurrent generations in ascending order."""
        query = "SELECT record FROM generations WHERE bucket = ? AND name = ? ORDER BY generation"
        rows = self._rows(query, (bucket, name.encode()))
        records = [msgspec.json.decode(encoded, type=ObjectRecord) for (encoded,) in rows]
        return [record for record in records if self.content(bucket, name, record.generation).exists()]

    def next_name(self, bucket: str, floor: bytes) -> bytes | None:
        """Return the first name from `floor` on, in byte order, that may have noncurrent generations."""
        query = "SELECT name FROM generations WHERE bucket = ? AND name >= ? ORDER BY name LIMIT 1"
        return next((name for (name,) in self._rows(query, (bucket, floor))), None)

    def all_of(self, bucket: str) -> Iterator[tuple[str, ObjectRecord]]:
        """Yield (name, record) of all noncurrent generations in a bucket, in order of name."""
        floor = b""
        while (name := self.next_name(bucket, floor)) is not None:
            for record in self.of(bucket, name.decode()):
                yield name.decode(), record
            floor = name + b"\0"

    def remove(self, bucket: str, name: str, generation: int) -> None:
        """Delete a generation durably. No effect if it does not exist."""
        if not self._table.exists():
            return
        with suppress(FileNotFoundError):
            self.content(bucket, name, generation).unlink()
            durable.sync_directory(str(self._directory(bucket)))
        query = "DELETE FROM generations WHERE bucket = ? AND name = ? AND generation = ?"
        self._do(query, (bucket, name.encode(), generation))

    def forget(self, bucket: str) -> None:
        if self._table.exists():
            self._do("DELETE FROM generations WHERE bucket = ?", (bucket,))
            shutil.rmtree(self._directory(bucket), ignore_errors=True)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _directory(self, bucket: str) -> Path:
        return self._contents / bucket

    def content(self, bucket: str, name: str, generation: int) -> Path:
        # Include a digest of the object's name. If a program created two hard links to one file, both objects
        # have the same generation number.
        digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        return self._directory(bucket) / f"{generation}-{digest}"

    def _rows(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        # Do not create the table to read it: most services have no bucket with versioning, and no table.
        return self._do(query, values) if self._table.exists() else []

    def _do(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        try:
            with self._lock:
                if self._connection is None:
                    self._connection = connect(self._table, _SCHEMA)
                return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise Unavailable(
                f"The database of noncurrent object versions, {self._table}, cannot be used: {error}. Free "
                "disk space, or check this file."
            ) from error


def _preserve(live: int, path: Path) -> None:
    """Create a second name (hard link) for an open file, or a copy if the link is not possible."""
    # A crash may have left a file at this path. Delete it: the live file still has the content.
    path.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Link by descriptor, because a program may have replaced the file at its path. This fails if another
        # user owns the file, and without /proc.
        os.link(f"/proc/self/fd/{live}", path.name, dst_dir_fd=directory, follow_symlinks=True)
    except OSError:
        half, done = path.with_name(f"{path.name}.half"), 0
        with half.open("wb") as target:
            while block := os.pread(live, BLOCK, done):
                done += target.write(block)
            target.flush()
            os.fsync(target.fileno())
        half.replace(path)
    finally:
        os.close(directory)
