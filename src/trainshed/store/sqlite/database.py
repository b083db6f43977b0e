"""Opens the SQLite store of a data directory: lock, schema, writer, readers, doors."""

import contextlib
import fcntl
import os
import sqlite3
from pathlib import Path

from trainshed.store.port import StoreInUse, StoreUnreadable
from trainshed.store.sqlite.connections import open_writer
from trainshed.store.sqlite.deleting import finish_deleting
from trainshed.store.sqlite.intake import SqliteIntake
from trainshed.store.sqlite.ledger import SqliteLedger
from trainshed.store.sqlite.models import SqliteModels
from trainshed.store.sqlite.reader import SqliteReader
from trainshed.store.sqlite.schema import migrate
from trainshed.store.sqlite.secrets import SqliteSecrets
from trainshed.store.sqlite.snapshots import Snapshots
from trainshed.store.sqlite.studies import SqliteStudies
from trainshed.store.sqlite.writer import Writer

DATABASE_FILE = "trainshed.db"
LOCK_FILE = "trainshed.lock"

_OLDEST_SQLITE = (3, 38, 0)
"""STRICT tables, and JSON functions in every build."""


class SqliteStore:
    """An open store (`store.port.Store`). Made by `open_database`."""

    def __init__(self, lock: int, writer: Writer, snapshots: Snapshots) -> None:
        self._lock = lock
        self._writer = writer
        self._snapshots = snapshots
        self._open = True
        self.intake = SqliteIntake(writer)
        self.ledger = SqliteLedger(writer, snapshots)
        self.reader = SqliteReader(snapshots)
        self.studies = SqliteStudies(writer, snapshots)
        self.models = SqliteModels(writer, snapshots)
        self.secrets = SqliteSecrets(writer, snapshots)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._snapshots.close()
        self._writer.close()
        os.close(self._lock)


def open_database(directory: Path) -> SqliteStore:
    """Open the store in `directory`, which is made if it is not there. Blocks.

    Raises StoreInUse while another process has it open, StoreTooNew, StoreUnreadable (also where the SQLite of
    this Python is too old), OSError.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        needed = ".".join(map(str, _OLDEST_SQLITE))
        raise StoreUnreadable(
            f"this Python brings SQLite {sqlite3.sqlite_version}, the job store needs {needed} or newer; "
            "run the service with a newer Python build, for example one that uv installs"
        )
    if not directory.exists():
        directory.mkdir(mode=0o700, parents=True)
        _sync_directory(directory.parent)
    with contextlib.ExitStack() as undo:
        lock = _lock(directory)
        undo.callback(os.close, lock)
        database = directory / DATABASE_FILE
        try:
            connection = open_writer(database)
            undo.callback(connection.close)
            migrate(connection)
            finish_deleting(connection)
        except sqlite3.DatabaseError as failure:
            raise StoreUnreadable(
                f"the job database {database} cannot be opened: {failure}. Restore it from a backup, or move "
                "it away to begin with an empty one"
            ) from failure
        _sync_directory(directory)
        snapshots = Snapshots(database)
        undo.pop_all()
    return SqliteStore(lock, Writer(connection), snapshots)


def _lock(directory: Path) -> int:
    """An exclusive lock that ends with the process, however it ends; the file says whose it is."""
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise StoreInUse(
            f"the data directory {directory} is in use by the service with process id {owner}; stop that "
            "one first, or start this one with another data directory"
        ) from None
    except OSError:
        os.close(descriptor)
        raise
    os.ftruncate(descriptor, 0)
    os.write(descriptor, b"%d\n" % os.getpid())
    return descriptor


def _sync_directory(directory: Path) -> None:
    """The entries of new files must outlast a power loss as their contents do."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
