"""Stores the metadata of objects together with their files, so that a record never describes another content.

A record contains the identity of its file (inode, size, modification time), and is valid only while the file
has that identity. A write through the directory (`/gcs`) therefore invalidates the record. The object then
has a new generation, which is computed from the file's new identity.

The record is in an extended attribute if the file system supports it and the record fits. Otherwise it is in
a sidecar file outside the visible tree, whose name contains the identity.

A copied directory has other inodes, often other times, and no attributes. Each record is therefore also in a
table by the object's name. A record in the table is valid for a file at the object's path in these cases:

- The file has the same size and time.
- The file has the same size and checksums.

The record is then attached to that file (ADR 43).
"""

import errno
import fcntl
import hashlib
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from trainshed.buckets.content import digest_file
from trainshed.buckets.port import LAST_NS, FileIdentity, ObjectRecord
from trainshed.replica.system import durable

_ATTRIBUTE = "user.trainshed.object"
_T = TypeVar("_T")
_NO_ATTRIBUTES = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_TOO_LARGE = {errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EDQUOT}
_DIRECT_GENERATION_BASE = 4 * 10**18
_DIRECT_GENERATIONS = 5 * 10**18


def direct_record(identity: FileIdentity) -> ObjectRecord:
    """Return the record of a file that was written through the directory, computed only from the file's
    identity. Its generation number is in a range that numbers of the API (microseconds) never reach. The two
    kinds of numbers are therefore always distinct."""
    seed = f"{identity.inode}:{identity.size}:{identity.mtime_ns}".encode()
    number = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big")
    # Limit the time, because a program may set any modification time.
    written = max(0, min(identity.mtime_ns, LAST_NS))
    return ObjectRecord(
        file=identity,
        generation=_DIRECT_GENERATION_BASE + number % _DIRECT_GENERATIONS,
        metageneration=1,
        created_ns=written,
        updated_ns=written,
        fields={"contentType": "application/octet-stream"},
    )


class RecordStore:
    """Reads and writes records of open files. Blocking and thread-safe. `key`: an object's `BUCKET/NAME`."""

    def __init__(self, state: Path, *, attributes: bool = True) -> None:
        self._sidecars = state / "records"
        self._attributes = attributes
        self._table = RecordTable(state / FILE)

    def load(self, fd: int, stat: os.stat_result, key: str, lock: threading.RLock) -> ObjectRecord:
        """Return the record of an open file. If no record is valid, compute one from the file's identity.
        `lock`: the lock of the object's writers, held while the record of a copied file is attached."""
        identity = FileIdentity.of(stat)
        return (
            self._load_attached(fd, identity)
            or self._from_table(fd, identity, key, lock)
            or direct_record(identity)
        )

    def of_closed(self, stat: os.stat_result) -> ObjectRecord:
        """Return the record of a file that cannot be opened, with at least its size and times."""
        identity = FileIdentity.of(stat)
        return self._from_sidecar(identity) or direct_record(identity)

    def attach(self, fd: int, record: ObjectRecord) -> None:
        """Attach a record to an open file. The caller syncs the file; this method syncs a sidecar."""
        encoded = msgspec.json.encode(record)
        if self._to_attribute(fd, encoded):
            self._sidecar(record.file).unlink(missing_ok=True)
            return
        path = self._sidecar(record.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(str(path), encoded, is_shared=True)
        self._access_attribute(os.removexattr, fd)

    def note(self, key: str, record: ObjectRecord) -> None:
        """Put the record of an object into the table. Writers of one object must not call it concurrently."""
        self._table.put(key, msgspec.json.encode(record))

    def forget(self, identity: FileIdentity) -> None:
        """Delete the sidecar of a deleted file, if the sidecar exists."""
        self._sidecar(identity).unlink(missing_ok=True)

    def drop(self, key: str) -> None:
        self._table.drop(key)

    def close(self) -> None:
        self._table.close()

    def _load_attached(self, fd: int, identity: FileIdentity) -> ObjectRecord | None:
        encoded = self._access_attribute(os.getxattr, fd)
        attached = None if encoded is None else _decode(encoded)
        if attached is not None and attached.file == identity and not attached.deleted_ns:
            return attached
        return self._from_sidecar(identity)

    def _from_table(
        self, fd: int, identity: FileIdentity, key: str, lock: threading.RLock
    ) -> ObjectRecord | None:
        """Return the table's record if the file is a copy of the object, and attach it to the file."""
        encoded = self._table.get(key)
        kept = None if encoded is None else _decode(encoded)
        if encoded is None or kept is None or kept.size != identity.size:
            return None
        if not (_is_time_of(kept.file, identity) or _has_content_of(fd, kept, identity)):
            # The file was modified. Delete the row, so that the next reader does not hash the file again.
            self._table.drop(key, encoded)
            return None
        bound = replace(kept, file=identity)
        with lock:
            if newer := self._load_attached(fd, identity):
                return newer  # Another writer attached or changed the record during the comparison.
            # If attaching fails, the next reader tries again. A read-only tree is no error.
            with suppress(OSError):
                self.attach(fd, bound)
                if kept.file != identity:
                    self.forget(kept.file)
            self._table.put(key, msgspec.json.encode(bound), encoded)
        return bound

    def _sidecar(self, identity: FileIdentity) -> Path:
        name = f"{identity.inode}-{identity.size}-{identity.mtime_ns}.json"
        return self._sidecars / f"{identity.inode % 256:02x}" / name

    def _from_sidecar(self, identity: FileIdentity) -> ObjectRecord | None:
        try:
            return _decode(self._sidecar(identity).read_bytes())
        except FileNotFoundError:
            return None

    def _access_attribute(self, call: Callable[[int, str], _T], fd: int) -> _T | None:
        """Call a function with the file and the name of its attribute, and return the result. Return None if
        the file has no such attribute, or its file system does not support attributes."""
        if self._attributes:
            try:
                return call(fd, _ATTRIBUTE)
            except OSError as error:
                if error.errno != errno.ENODATA and error.errno not in _NO_ATTRIBUTES:
                    raise
        return None

    def _to_attribute(self, fd: int, encoded: bytes) -> bool:
        if self._attributes:
            try:
                os.setxattr(fd, _ATTRIBUTE, encoded)
            except OSError as error:
                if error.errno not in _NO_ATTRIBUTES | _TOO_LARGE:
                    raise
            else:
                return True
        return False


def _decode(encoded: bytes) -> ObjectRecord | None:
    # A job may write to the attribute of its own file. Invalid content is treated as a missing record.
    try:
        return msgspec.json.decode(encoded, type=ObjectRecord)
    except (ValueError, RecursionError):
        return None


def _is_time_of(kept: FileIdentity, copy: FileIdentity) -> bool:
    """Whether the modification time of a copied file equals that of the original, within the precision of the
    copying tool. Tar and older tools truncate times to seconds, some tools to microseconds."""
    return any(copy.mtime_ns == kept.mtime_ns - kept.mtime_ns % unit for unit in (1, 1_000, 1_000_000_000))


def _has_content_of(fd: int, record: ObjectRecord, identity: FileIdentity) -> bool:
    """Whether an open file has the record's checksums. Reads the whole file."""
    if not record.crc32c:
        return False
    sums = digest_file(fd).sums()
    if FileIdentity.of(os.fstat(fd)) != identity:
        return False  # The checksums are unreliable: a program is writing to the file.
    return sums.crc32c == record.crc32c and record.md5 in ("", sums.md5)


log = logging.getLogger(__name__)

FILE = "records.db"
_BUSY_TIMEOUT_S = 5
_SCHEMA = (
    "PRAGMA journal_mode = WAL",
    # A power failure may lose the last rows. That is safe, because the records attached to files are durable.
    "PRAGMA synchronous = NORMAL",
    "CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID",
)


class RecordTable:
    """Encoded records by key (`BUCKET/NAME`), in a file that every copying tool includes.

    The table is a second copy: a record attached to an object's file has priority, and the table is read only
    for files without a record. Therefore a request succeeds even if the write to the table fails, and an
    unreadable table is created again. The table is opened at its first use. After a failure, such as a full
    disk, the next use tries again. Blocking. Thread-safe and process-safe.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._connection: sqlite3.Connection | None = None
        #: Whether a failure was logged since the last success.
        self._is_reported = False

    def get(self, key: str) -> bytes | None:
        row = self._first("SELECT record FROM records WHERE key = ?", (key,))
        return None if row is None else row[0]

    def put(self, key: str, record: bytes, before: bytes | None = None) -> None:
        """Store an object's record. `before`: replace only this earlier record, because another process may
        have written a newer one. None = replace any record."""
        if before is None:
            self._do("INSERT OR REPLACE INTO records VALUES (?, ?)", (key, record))
        else:
            self._do("UPDATE records SET record = ? WHERE key = ? AND record = ?", (record, key, before))

    def drop(self, key: str, before: bytes | None = None) -> None:
        """Remove the record of a deleted object. `before`: as in `put`."""
        self._do("DELETE FROM records WHERE key = ? AND record = coalesce(?, record)", (key, before))

    def count(self) -> int:
        """Return the number of records; 0 if the table cannot be read."""
        row = self._first("SELECT count(*) FROM records", ())
        return row[0] if row else 0

    def close(self) -> None:
        if self._connection is not None:
            with self._lock:
                self._connection.close()

    def _first(self, statement: str, values: tuple[Any, ...]) -> Any:
        return self._run_or_log(lambda table: table.execute(statement, values).fetchone())

    def _do(self, statement: str, values: tuple[Any, ...]) -> None:
        self._run_or_log(lambda table: table.execute(statement, values))

    def _run_or_log(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        try:
            with self._lock:
                if self._connection is None:
                    self._connection = _open(self._path)
                done = work(self._connection)
        except (sqlite3.Error, OSError) as error:
            if not self._is_reported:
                log.warning(
                    "buckets: %s cannot be updated: %s. Copies of the buckets may lose metadata",
                    self._path,
                    error,
                )
            self._is_reported = True
            return None
        self._is_reported = False
        return done


def _open(path: Path) -> sqlite3.Connection:
    try:
        return connect(path, _SCHEMA)
    except sqlite3.OperationalError:
        raise  # Keep the file. It is intact, but disk space, a permission or descriptors are missing.
    except sqlite3.DatabaseError as error:
        aside = path.with_name(f"{path.name}.damaged")
        log.warning("buckets: %s is damaged (%s) and is recreated. The old file is %s", path, error, aside)
        path.replace(aside)
        for end in ("-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        return connect(path, _SCHEMA)


def connect(path: Path, schema: Sequence[str]) -> sqlite3.Connection:
    """Open a table that several threads and processes may use, and create it if it does not exist. Raises
    sqlite3.Error."""
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        for statement in schema:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def lock_directory(directory: Path) -> Generator[None]:
    """Lock the directory until the context exits. Other threads and processes wait for the lock."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
