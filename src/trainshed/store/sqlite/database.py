"""Opens the SQLite store of a data directory: lock, schema, writer, readers, ports."""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from trainshed.replica.system import durable
from trainshed.store.port import StoreInUse, StoreUnreadable
from trainshed.store.records import RecordSetAside
from trainshed.store.sqlite.connections import (
    damaged,
    open_writer,
    release_pages,
    require_not_emptied,
    require_sound,
)
from trainshed.store.sqlite.curves import SqliteCurves
from trainshed.store.sqlite.datasets import SqliteDatasets
from trainshed.store.sqlite.evaluations import SqliteEvaluations
from trainshed.store.sqlite.jobs import SqliteIntake, SqliteLedger
from trainshed.store.sqlite.metadata import SqliteMetadata
from trainshed.store.sqlite.models import SqliteModels
from trainshed.store.sqlite.notifications import SqliteNotifications
from trainshed.store.sqlite.operations import SqliteOperations
from trainshed.store.sqlite.reader import SqliteReader
from trainshed.store.sqlite.schema import migrate
from trainshed.store.sqlite.secrets import SqliteSecrets
from trainshed.store.sqlite.setting_aside import FileSettingAside
from trainshed.store.sqlite.snapshots import Snapshots
from trainshed.store.sqlite.studies import SqliteStudies, finish_deleting
from trainshed.store.sqlite.tensorboards import SqliteTensorboards
from trainshed.store.sqlite.writer import Writer

DATABASE_FILE = "trainshed.db"
LOCK_FILE = "trainshed.lock"
_OPEN = b"open\n"
_CLOSED = b"closed\n"
"""The end of the lock file: whether the service that has, or had, the database open has closed it."""

_OLDEST_SQLITE = (3, 38, 0)
"""The first version with STRICT tables, and with JSON functions in every build."""


class SqliteStore:
    """An open store (`store.port.Store`), made by `open_database`."""

    def __init__(
        self, lock: int, writer: Writer, snapshots: Snapshots, aside: FileSettingAside
    ) -> None:
        self._lock = lock
        self._aside = aside
        self._writer = writer
        self._snapshots = snapshots
        self._open = True
        self.intake = SqliteIntake(writer)
        self.ledger = SqliteLedger(writer, snapshots)
        self.reader = SqliteReader(snapshots)
        self.studies = SqliteStudies(writer, snapshots)
        self.models = SqliteModels(writer, snapshots)
        self.evaluations = SqliteEvaluations(writer, snapshots)
        self.metadata = SqliteMetadata(writer, snapshots)
        self.tensorboards = SqliteTensorboards(writer, snapshots)
        self.curves = SqliteCurves(writer, snapshots)
        self.datasets = SqliteDatasets(writer, snapshots)
        self.secrets = SqliteSecrets(writer, snapshots)
        self.operations = SqliteOperations(writer, snapshots)
        self.notifications = SqliteNotifications(writer, snapshots)

    async def release_memory(self) -> None:
        await self._writer.run("release_memory", release_pages)
        self._snapshots.here(release_pages)
        await self._snapshots.aside(release_pages)

    def when_set_aside(self, told: Callable[[RecordSetAside], object]) -> None:
        self._aside.told = told

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._snapshots.close()
        self._writer.close()
        with contextlib.suppress(OSError):  # On a full disk the next start checks the database.
            _say(self._lock, _CLOSED)
        os.close(self._lock)


def open_database(directory: Path) -> SqliteStore:
    """Open the store in `directory`, which is made if it does not exist. Blocks.

    Raises StoreInUse while another process has it open, StoreTooNew, StoreUnreadable (also if the SQLite of
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
        durable.sync_directory(str(directory.parent))
    with contextlib.ExitStack() as undo:
        lock, before = _lock(directory)
        undo.callback(os.close, lock)
        database = directory / DATABASE_FILE
        try:
            if before:
                require_not_emptied(database)
            connection = open_writer(database)
            undo.callback(connection.close)
            if before == _OPEN:
                require_sound(connection, database)
            migrate(connection)
            finish_deleting(connection)
        except sqlite3.OperationalError as failure:
            raise StoreUnreadable(
                f"the job database {database} cannot be opened: {failure}. Check the permissions and the "
                "free space of its directory"
            ) from failure
        except sqlite3.DatabaseError as failure:
            raise damaged(database, str(failure)) from failure
        durable.sync_directory(str(directory))
        _say(lock, b"%d\n%s" % (os.getpid(), _OPEN))
        aside = FileSettingAside(database)
        snapshots = Snapshots(database, aside)
        undo.pop_all()
    return SqliteStore(lock, Writer(connection, aside), snapshots, aside)


def _lock(directory: Path) -> tuple[int, bytes]:
    """Take an exclusive lock that ends with the process in any case; the file names its owner. Return its
    descriptor and how the last owner left the database: `_OPEN` (not closed), `_CLOSED`, or b"" (there was
    none). Raises StoreInUse, OSError."""
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.read(descriptor, 32).decode("ascii", "replace")
        owner = said.partition("\n")[0].strip() or "unknown"
        os.close(descriptor)
        raise StoreInUse(
            f"the data directory {directory} is in use by the service with process id {owner}; stop that "
            "one first, or start this one with another data directory"
        ) from None
    except OSError:
        os.close(descriptor)
        raise
    said = os.pread(descriptor, 64, 0)
    before = next((mark for mark in (_OPEN, _CLOSED) if said.endswith(mark)), b"")
    # A crash before there is a database must not leave a mark as if there were one.
    _say(descriptor, b"%d\n%s" % (os.getpid(), before))
    return descriptor, before


def _say(lock: int, text: bytes) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, text, 0)
