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
    damaged,
    migrate,
    open_writer,
    require_not_emptied,
    require_sound,
)
from trainshed.store.sqlite.jobs import Intake, Ledger
from trainshed.store.sqlite.models import Evaluations, Models
from trainshed.store.sqlite.presence import (
    OpenFiles,
    require_content,
    require_not_older,
    require_present,
)
from trainshed.store.sqlite.reader import Reader
from trainshed.store.sqlite.reservations import PersistentResources
from trainshed.store.sqlite.resources import Access, Curves, Datasets, Notifications, Secrets
from trainshed.store.sqlite.snapshots import Snapshots
from trainshed.store.sqlite.studies import Studies
from trainshed.store.sqlite.writer import Writer

LOCK_FILE = "trainshed.lock"
_OPEN = "open"
_CLOSED = "closed"
"""The last line of the lock file: whether the service that has, or had, the database open has closed it."""

_WATCH_EVERY = 5.0
"""Seconds between two looks at the store's files while nothing is written."""

_OLDEST_SQLITE = (3, 38, 0)
"""The first version with STRICT tables, and with JSON functions in every build."""


class Store:
    """An open store, by its parts. Used from one event loop. No call keeps a transaction open beyond its own
    statements. Contract suite: tests/contract/store.

    `acquired`: called with each epoch that a leader has taken. Raises OSError.
    """

    def __init__(
        self, writer: Writing, snapshots: Reading, acquired: Callable[[int], None] = lambda _: None
    ) -> None:
        #: The writer for further parts, such as parts of additions.
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
        """Detect within seconds that the store's files were removed or replaced. All acknowledged
        data is then saved, and until the files are back each write raises Unavailable with advice.
        Runs until it is cancelled. Without it, the next write detects the removal."""

    def close(self) -> None:
        """Finish queued writes and release the data directory. Blocks; does nothing the second time."""


class FileStore(Store):
    """An open store in a data directory, made by `open_database`."""

    def __init__(self, lock: "_Lock", writer: Writer, snapshots: Snapshots) -> None:
        super().__init__(writer, snapshots, lock.note_epoch)
        self._lock = lock
        self._writer = writer
        self._snapshots = snapshots
        self._open = True

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_EVERY)
            # The writer looks before each transaction, and saves what can be saved.
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
    """Open the store in `directory`, which is made if it does not exist. Blocks.

    Raises StoreInUse while another process has it open, StoreUnreadable (also if the SQLite of
    this Python is too old), OSError.
    """
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
            raise damaged(database, str(failure)) from failure
        durable.sync_directory(str(directory))
        lock.note_epoch(epoch)
        snapshots = Snapshots(database)
        files = OpenFiles(database)
        undo.pop_all()
    return FileStore(lock, Writer(connection, files), snapshots)


class _Lock:
    """The lock of a data directory, which ends with the process in any case. The file's lines: the process
    id of its owner, the epoch of the last leader that it has seen, and how it left the database."""

    def __init__(self, directory: Path) -> None:
        """Take it. Raises StoreInUse, OSError."""
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
        #: How the last owner left the database: `_OPEN` (not closed) or `_CLOSED`; None = there was none.
        self.before = next((word for word in words if word in (_OPEN, _CLOSED)), None)
        #: The epoch of the last leader; 0 = it is not known.
        self.epoch = int(next((word for word in words if word.isdecimal()), "0"))
        # A crash before there is a database must not leave a mark as if there were one.
        self._say(self.before or "")

    def note_epoch(self, epoch: int) -> None:
        """Note that the database is open, and has that epoch or a later one. Raises OSError."""
        self.epoch = epoch
        self._say(_OPEN)

    def close(self) -> None:
        """Note that the database was closed, and give the lock back."""
        with contextlib.suppress(OSError):  # On a full disk the next start checks the database.
            self._say(_CLOSED)
        os.close(self.handle)

    def _lines(self) -> tuple[str, list[str]]:
        owner, *words = os.pread(self.handle, 64, 0).decode("ascii", "replace").split("\n")
        return owner.strip(), words

    def _say(self, mark: str) -> None:
        text = f"{os.getpid()}\n{self.epoch}\n{mark}\n".encode()
        os.pwrite(self.handle, text, 0)
        os.ftruncate(self.handle, len(text))
