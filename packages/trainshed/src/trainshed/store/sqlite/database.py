"""Opens the SQLite store of a data directory: lock, schema, writer, readers, ports."""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from trainshed.core.errors import Unavailable
from trainshed.replica.system import durable
from trainshed.store.port import StoreInUse, StoreUnreadable
from trainshed.store.sqlite.connections import (
    DATABASE_FILE,
    Reading,
    Writing,
    damaged_error,
    migrate,
    open_writer,
    require_not_emptied,
    require_sound,
)
from trainshed.store.sqlite.jobs import Intake, Ledger
from trainshed.store.sqlite.models import Evaluations, Models
from trainshed.store.sqlite.presence import OpenFiles, require_content, require_not_older, require_present
from trainshed.store.sqlite.reader import Reader
from trainshed.store.sqlite.reservations import PersistentResources
from trainshed.store.sqlite.resources import Access, Curves, Datasets, Notifications, Secrets
from trainshed.store.sqlite.snapshots import Snapshots
from trainshed.store.sqlite.studies import Studies
from trainshed.store.sqlite.writer import Writer

LOCK_FILE = "trainshed.lock"
_OPEN = "open"
_CLOSED = "closed"
"""The last line of the lock file if the last service has closed the database."""

_WATCH_EVERY = 5.0
"""Seconds between two checks of the store's files. A write checks the files, too."""

_OLDEST_SQLITE = (3, 38, 0)
"""The first SQLite version with STRICT tables, and with JSON functions in every build."""


class Store:
    """An open store with its parts. Used from one event loop. No transaction remains open after a call.
    Contract tests: tests/contract/store.

    `acquired`: called with each epoch that a leader has acquired. It may raise OSError.
    """

    def __init__(
        self, writer: Writing, snapshots: Reading, acquired: Callable[[int], None] = lambda _: None
    ) -> None:
        #: The writer. Additional parts of the store may share it.
        self.writer = writer
        self.snapshots = snapshots
        self.intake = Intake(writer, snapshots)
        self.ledger = Ledger(writer, snapshots, acquired)
        self.reader = Reader(writer, snapshots)
        self.studies = Studies(writer, snapshots)
        self.models = Models(writer, snapshots)
        self.evaluations = Evaluations(writer, snapshots)
        self.curves = Curves(writer, snapshots)
        self.datasets = Datasets(writer, snapshots)
        self.persistent_resources = PersistentResources(writer, snapshots)
        self.secrets = Secrets(writer, snapshots)
        self.access = Access(writer, snapshots)
        self.notifications = Notifications(writer, snapshots)

    async def watch(self) -> None:
        """Check the store's files regularly, to detect removed or replaced files within seconds. Runs until
        it is cancelled.

        After the detection, all acknowledged data are saved. Each write then raises Unavailable with advice
        until the files are restored. Without this task, a removal would not be detected until the next write.
        """

    def close(self) -> None:
        """Finish queued writes and release the data directory. Blocks. Further calls have no effect."""


class FileStore(Store):
    """An open store in a data directory, created by `open_database`."""

    def __init__(self, lock: "_Lock", writer: Writer, snapshots: Snapshots) -> None:
        super().__init__(writer, snapshots, lock.note_epoch)
        self._lock = lock
        self._writer = writer
        self._snapshots = snapshots
        self._open = True

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_EVERY)
            # Run an empty write, because the writer checks the files before each write. If a file is missing,
            # the writer saves the data if possible, and the write raises Unavailable.
            with contextlib.suppress(Unavailable):
                await self._writer.run("watch", lambda _: None)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._snapshots.close()
        self._writer.close()
        self._lock.close()


def open_database(directory: Path) -> FileStore:
    """Open the store in `directory`. Create the directory if it does not exist. Blocks. Raises StoreInUse
    while another process uses the directory. Raises StoreUnreadable if the database cannot be used or SQLite
    is too old. Raises OSError if the directory or the lock file cannot be used."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        needed = ".".join(map(str, _OLDEST_SQLITE))
        raise StoreUnreadable(
            f"this Python has SQLite {sqlite3.sqlite_version}, and the job store needs "
            f"{needed} or newer; run the service with a newer Python build, for example one "
            "that uv installs"
        )
    if not directory.exists():
        directory.mkdir(mode=0o700, parents=True)
        durable.sync_directory(str(directory.parent))
    with contextlib.ExitStack() as undo:
        lock = _Lock(directory)
        undo.callback(os.close, lock.handle)
        database = directory / DATABASE_FILE
        try:
            require_present(database, had_one=bool(lock.before))
            if lock.before:
                require_not_emptied(database)
            connection = open_writer(database)
            undo.callback(connection.close)
            if lock.before == _OPEN:
                require_sound(connection, database)
            require_content(connection, database, had_one=bool(lock.before))
            migrate(connection, database)
            ((epoch,),) = connection.execute("SELECT epoch FROM leader").fetchall()
            require_not_older(database, epoch, lock.epoch)
        except sqlite3.OperationalError as failure:
            raise StoreUnreadable(
                f"the job database {database} cannot be opened: {failure}. Check the permissions and the "
                "free space of its directory"
            ) from failure
        except sqlite3.DatabaseError as failure:
            raise damaged_error(database, str(failure)) from failure
        durable.sync_directory(str(directory))
        lock.note_epoch(epoch)
        snapshots = Snapshots(database)
        files = OpenFiles(database)
        undo.pop_all()
    return FileStore(lock, Writer(connection, files), snapshots)


class _Lock:
    """The lock of a data directory. The kernel releases the lock when the process ends, even after a crash.

    The lock file contains these lines: the process ID of the owner, the epoch of the last known leader, and
    whether the database was closed.
    """

    def __init__(self, directory: Path) -> None:
        """Acquire the lock. Raise StoreInUse if another process has the lock, or OSError if the lock file
        cannot be used."""
        self.handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner, _ = self._lines()
            os.close(self.handle)
            raise StoreInUse(
                f"the data directory {directory} is in use by the service with process id "
                f"{owner or 'unknown'}; stop that service first, or start this one with another "
                "data directory"
            ) from None
        except OSError:
            os.close(self.handle)
            raise
        _, words = self._lines()
        #: The state in which the last owner left the database: `_OPEN` (not closed) or `_CLOSED`. None =
        #: there was no earlier owner.
        self.before = next((word for word in words if word in (_OPEN, _CLOSED)), None)
        #: The epoch of the last leader, or 0 if unknown.
        self.epoch = int(next((word for word in words if word.isdecimal()), "0"))
        # Do not record an open database yet. If the service crashes before it has created the database, the
        # next start must not report the database as missing.
        self._write_state(self.before or "")

    def note_epoch(self, epoch: int) -> None:
        """Record that the database is open and that its epoch is at least this one. Raise OSError if the
        write fails."""
        self.epoch = epoch
        self._write_state(_OPEN)

    def close(self) -> None:
        """Record that the database was closed, and release the lock."""
        # If the disk is full, this fails, and the next start checks the database.
        with contextlib.suppress(OSError):
            self._write_state(_CLOSED)
        os.close(self.handle)

    def _lines(self) -> tuple[str, list[str]]:
        owner, *words = os.pread(self.handle, 64, 0).decode("ascii", "replace").split("\n")
        return owner.strip(), words

    def _write_state(self, mark: str) -> None:
        text = f"{os.getpid()}\n{self.epoch}\n{mark}\n".encode()
        os.pwrite(self.handle, text, 0)
        os.ftruncate(self.handle, len(text))
