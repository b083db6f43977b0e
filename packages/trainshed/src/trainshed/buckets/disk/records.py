"""Keeps the metadata of objects with their files, so that it can never describe another content.

A record names the file it was written for (inode, size, modification time), and counts only while the file
still has that identity: a write through the directory (`/gcs`) makes it stale, and the object then has a
fresh generation that is a function of the new identity alone.

It is kept in an extended attribute where the file system has them and the record fits, otherwise in a sidecar
file that is named by the identity and lies outside the visible tree.

A copy of the directory has other inodes, often other times, and no attributes. So each record is also in a
table, by the object's name, and counts for a file at its path that has its size and time, or its size and
checksums. It is then bound to that file (ADR 43).
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
    """Returns the record of a file that was written through the directory: a pure function of its identity.

    Its generation numbers are in a range that those given out by the API (microseconds) never reach, so that
    neither kind can be taken for the other.
    """
    seed = f"{identity.inode}:{identity.size}:{identity.mtime_ns}".encode()
    number = int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big")
    written = max(0, min(identity.mtime_ns, LAST_NS))  # A program may give its file any time.
    return ObjectRecord(
        file=identity,
        generation=_DIRECT_GENERATION_BASE + number % _DIRECT_GENERATIONS,
        metageneration=1,
        created_ns=written,
        updated_ns=written,
        fields={"contentType": "application/octet-stream"},
    )


class RecordStore:
    """Reads and writes records of open files. Blocking; safe to use from several threads.

    `key` is an object's bucket and name, `BUCKET/NAME`.
    """

    def __init__(self, state: Path, *, attributes: bool = True) -> None:
        self._sidecars = state / "records"
        self._attributes = attributes
        self._table = RecordTable(state / FILE)

    def load(self, fd: int, stat: os.stat_result, key: str, lock: threading.RLock) -> ObjectRecord:
        """Returns the record of an open file, or the one derived from its identity if none is valid. `lock`:
        that of the object's writers, which is taken to bind a copy's record."""
        identity = FileIdentity.of(stat)
        return (
            self._attached(fd, identity)
            or self._from_table(fd, identity, key, lock)
            or direct_record(identity)
        )

    def of_closed(self, stat: os.stat_result) -> ObjectRecord:
        """Returns the record of a file that cannot be opened, as far as it is known without: always its size
        and times."""
        identity = FileIdentity.of(stat)
        return self._from_sidecar(identity) or direct_record(identity)

    def attach(self, fd: int, record: ObjectRecord) -> None:
        """Attach a record to an open file; the caller syncs the file, we sync a sidecar."""
        encoded = msgspec.json.encode(record)
        if self._to_attribute(fd, encoded):
            self._sidecar(record.file).unlink(missing_ok=True)
            return
        path = self._sidecar(record.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(str(path), encoded, is_shared=True)
        self._at_attribute(os.removexattr, fd)

    def note(self, key: str, record: ObjectRecord) -> None:
        """Put the record of an object into the table. The writers of one object must not call it at the same
        time."""
        self._table.put(key, msgspec.json.encode(record))

    def forget(self, identity: FileIdentity) -> None:
        """Drop the sidecar, if any, of a file that is gone."""
        self._sidecar(identity).unlink(missing_ok=True)

    def drop(self, key: str) -> None:
        self._table.drop(key)

    def close(self) -> None:
        self._table.close()

    def _attached(self, fd: int, identity: FileIdentity) -> ObjectRecord | None:
        encoded = self._at_attribute(os.getxattr, fd)
        attached = None if encoded is None else _decode(encoded)
        if attached is not None and attached.file == identity and not attached.deleted_ns:
            return attached
        return self._from_sidecar(identity)

    def _from_table(
        self, fd: int, identity: FileIdentity, key: str, lock: threading.RLock
    ) -> ObjectRecord | None:
        """Returns the record of the object that the file is a copy of, bound to the file."""
        encoded = self._table.get(key)
        kept = None if encoded is None else _decode(encoded)
        if encoded is None or kept is None or kept.size != identity.size:
            return None
        if not (_is_time_of(kept.file, identity) or _has_content_of(fd, kept, identity)):
            self._table.drop(key, encoded)  # The file was written to since; it is not hashed again.
            return None
        bound = replace(kept, file=identity)
        with lock:
            if newer := self._attached(fd, identity):
                return newer  # It was bound, and perhaps changed, while its content was compared.
            # If it fails, the next reader binds it: a read-only tree is no reason to fail.
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

    def _at_attribute(self, call: Callable[[int, str], _T], fd: int) -> _T | None:
        """Returns what a call for the file's attribute returns; None if there is no such attribute."""
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
    # A job may scribble on the attribute of its own file: what the service cannot have written is no record.
    try:
        return msgspec.json.decode(encoded, type=ObjectRecord)
    except (ValueError, RecursionError):
        return None


def _is_time_of(kept: FileIdentity, copy: FileIdentity) -> bool:
    """Whether a copy's time equals the file's, as exactly as the way of copying keeps times: tar and older
    tools cut them to seconds, some to microseconds."""
    return any(
        copy.mtime_ns == kept.mtime_ns - kept.mtime_ns % unit for unit in (1, 1_000, 1_000_000_000)
    )


def _has_content_of(fd: int, record: ObjectRecord, identity: FileIdentity) -> bool:
    """Whether an open file has the record's checksums. It reads the whole file."""
    if not record.crc32c:
        return False
    sums = digest_file(fd).sums()
    if FileIdentity.of(os.fstat(fd)) != identity:
        return False  # The file is being written at this moment.
    return sums.crc32c == record.crc32c and record.md5 in ("", sums.md5)


log = logging.getLogger(__name__)

FILE = "records.db"
_BUSY_TIMEOUT_S = 5
_SCHEMA = (
    "PRAGMA journal_mode = WAL",
    # A crash of the machine may lose the last rows: the records beside the files are durable.
    "PRAGMA synchronous = NORMAL",
    "CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID",
)


class RecordTable:
    """Encoded records by key (`BUCKET/NAME`), in a file that every way of copying takes along.

    It is a second copy: the record attached to an object's file is what counts. It is read only for
    files that have none, so a failure to write it fails no request, and an unreadable one is begun anew.
    The file is opened at its first use; what prevents that, such as a full disk, may be gone at the next one.
    Blocking; safe to use from several threads and processes.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._connection: sqlite3.Connection | None = None
        #: Whether a failure was logged, and nothing has succeeded since.
        self._is_told = False

    def get(self, key: str) -> bytes | None:
        row = self._first("SELECT record FROM records WHERE key = ?", (key,))
        return None if row is None else row[0]

    def put(self, key: str, record: bytes, before: bytes | None = None) -> None:
        """Store an object's record; with `before` only in its place, since others may have written a newer
        one."""
        if before is None:
            self._do("INSERT OR REPLACE INTO records VALUES (?, ?)", (key, record))
        else:
            self._do(
                "UPDATE records SET record = ? WHERE key = ? AND record = ?", (record, key, before)
            )

    def drop(self, key: str, before: bytes | None = None) -> None:
        """Remove the record of an object that is gone; `before` as in `put`."""
        self._do(
            "DELETE FROM records WHERE key = ? AND record = coalesce(?, record)", (key, before)
        )

    def count(self) -> int:
        """Returns how many records there are; 0 if that cannot be read."""
        row = self._first("SELECT count(*) FROM records", ())
        return row[0] if row else 0

    def close(self) -> None:
        if self._connection is not None:
            with self._lock:
                self._connection.close()

    def _first(self, statement: str, values: tuple[Any, ...]) -> Any:
        return self._guarded(lambda table: table.execute(statement, values).fetchone())

    def _do(self, statement: str, values: tuple[Any, ...]) -> None:
        self._guarded(lambda table: table.execute(statement, values))

    def _guarded(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        try:
            with self._lock:
                if self._connection is None:
                    self._connection = _open(self._path)
                done = work(self._connection)
        except (sqlite3.Error, OSError) as error:
            if not self._is_told:
                log.warning(
                    "buckets: %s is not kept up to date: %s. Copies of the buckets may lose metadata",
                    self._path,
                    error,
                )
            self._is_told = True
            return None
        self._is_told = False
        return done


def _open(path: Path) -> sqlite3.Connection:
    try:
        return connect(path, _SCHEMA)
    except sqlite3.OperationalError:
        raise  # Not the file's fault: no space, no permission, no descriptors.
    except sqlite3.DatabaseError as error:
        aside = path.with_name(f"{path.name}.damaged")
        log.warning(
            "buckets: %s is damaged (%s); it is made anew, the old one is %s", path, error, aside
        )
        path.replace(aside)
        for end in ("-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        return connect(path, _SCHEMA)


def connect(path: Path, schema: Sequence[str]) -> sqlite3.Connection:
    """Open a table that several threads and processes use, and make it if it is not there. Raises
    sqlite3.Error."""
    connection = sqlite3.connect(
        path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        for statement in schema:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def alone(directory: Path) -> Generator[None]:
    """Lock the directory against other processes that call this."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
