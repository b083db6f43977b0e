"""Detects whether an earlier database is missing, and whether an open database is still at its path
(docs/adr/0044).

SQLite detects neither. It creates a new database at an empty path. It also continues to write to files that
were removed, and these writes are lost when the process ends.
"""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from trainshed.replica.system import durable
from trainshed.store.port import StoreUnreadable

log = logging.getLogger(__name__)

RESCUED: Final = "trainshed-rescued.db"
"""The file name of the copy that the service saves of its open database after the database file was removed.
"""
_LOG, _INDEX = "-wal", "-shm"
_OF_JOBS: Final = ("slots", "logs", "autopsies")
"""Directories with one entry per job. The name of the entry is the UID of the job."""
_OF_ENGINES: Final = "engines"


def traces(directory: Path) -> Iterator[str]:
    """Yield descriptions of files that exist only if a service once had a database in the directory."""
    for name in _OF_JOBS:
        with suppress(OSError):
            if jobs := sum(entry.name.isdecimal() for entry in os.scandir(directory / name)):
                yield f"{name}/ of {jobs} {'jobs' if jobs > 1 else 'job'}"
    with suppress(OSError):
        if any(os.scandir(directory / _OF_ENGINES)):
            yield f"{_OF_ENGINES}/"


def require_present(database: Path, *, had_one: bool) -> None:
    """Raise StoreUnreadable if an earlier database is missing. `had_one`: whether an earlier service has
    recorded that it had a database."""
    if not database.exists():
        _require_new(database, "no longer exists", had_one=had_one)


def require_content(connection: sqlite3.Connection, database: Path, *, had_one: bool) -> None:
    """Raise StoreUnreadable if a database is empty although it had contents before."""
    if connection.execute("PRAGMA user_version").fetchone() == (0,):
        _require_new(database, f"has lost its content (with {database.name}{_LOG})", had_one=had_one)


def _require_new(database: Path, what: str, *, had_one: bool) -> None:
    directory = database.parent
    left = list(traces(directory))
    if not (left or had_one):
        return
    rescued = directory / RESCUED
    back = (
        "Restore the file to its place, or restore a backup into a new directory: "
        "trainshed restore BACKUP --data NEW"
    )
    if rescued.exists():
        back = f"The service saved its content at that time: {_put_back(database)}"
    because = f"; {', '.join(left)} remain{'' if len(left) > 1 else 's'}" if left else ""
    raise StoreUnreadable(
        f"the job database {database} {what}{because}. {back}. Or start with an empty "
        f"one: mv {directory} {directory}.old (or use another --data). Until then the "
        "service starts and ends no programs; running programs continue"
    )


def require_not_older(database: Path, epoch: int, known: int) -> None:
    """Raise StoreUnreadable if an earlier service on this directory used a newer state of the database.
    `epoch`: the epoch in the database, which increases with each start of a service. `known`: the last epoch
    that a service has recorded outside the database."""
    if epoch < known:
        raise StoreUnreadable(
            f"the job database {database} is older than other files of its directory: "
            f"{known - epoch} start(s) of a service are missing from it. An older copy has "
            f"replaced it, or its log ({database.name}{_LOG}) was removed after a crash. "
            "Restore the newer file, or restore a backup into a new directory: trainshed "
            "restore BACKUP --data NEW. To use this file anyway: rm "
            f"{database.parent}/trainshed.lock; the service then ends programs of jobs that "
            "are not in it"
        )


class OpenFiles:
    """Detects removed or replaced files of an open database. Used only by the writer's thread."""

    def __init__(self, database: Path) -> None:
        """Record the identity of the files. Call this method while a connection has the database open. Raise
        OSError if the files cannot be read."""
        self._database = database
        self._paths = [database.with_name(f"{database.name}{end}") for end in ("", _LOG, _INDEX)]
        self._opened = [_identity(path) for path in self._paths]
        self._lost: list[str] = []
        self._advice: str | None = None

    def fault(self, connection: sqlite3.Connection) -> str | None:
        """Return an error message with advice if a file was removed or replaced, otherwise None. The first
        detection also saves all committed data. All other checks take microseconds."""
        pairs = zip(self._paths, self._opened, strict=True)
        lost = [path.name for path, opened in pairs if _identity(path) != opened]
        if lost and lost != self._lost:
            self._advice = self._save(connection, lost)
            log.error("%s", self._advice)
        self._lost = lost
        return self._advice if lost else None

    def _save(self, connection: sqlite3.Connection, lost: list[str]) -> str:
        database, process = self._database, os.getpid()
        what = f"{', '.join(lost)} in {database.parent} was removed or replaced while the service uses it"
        up = f"trainshed up --data {database.parent}"
        if database.name not in lost and _is_written_back(connection):
            return f"{what}. Programs continue and nothing is lost. Restart the service: kill {process}; {up}"
        if failure := self._copy(connection):
            return (
                f"{what}, and its content could not be saved ({failure}). The content is lost "
                f"when process {process} ends. If the file was only moved, move it back"
            )
        return (
            f"{what}. Programs continue, and all of its content was saved. Restart the "
            f"service: kill {process}; {_put_back(database)}; {up}"
        )

    def _copy(self, connection: sqlite3.Connection) -> str | None:
        """Copy the open database page by page. Return the error, or None after success."""
        fresh, rescued = (self._database.with_name(f"{RESCUED}.new"), self._database.with_name(RESCUED))
        try:
            fresh.unlink(missing_ok=True)
            fresh.touch(mode=0o600)
            with closing(sqlite3.connect(fresh)) as copy:
                connection.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.replace(rescued)
            durable.sync_directory(str(rescued.parent))
        except (OSError, sqlite3.Error) as error:
            return str(error)
        return None


def _is_written_back(connection: sqlite3.Connection) -> bool:
    """Write all committed data to the main database file. Return False if a reader prevents that."""
    with suppress(sqlite3.Error):
        is_busy, frames, written = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return not is_busy and frames == written
    return False


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _put_back(database: Path) -> str:
    rescued = database.with_name(RESCUED)
    return f"rm -f {database}{_LOG} {database}{_INDEX}; mv {rescued} {database}"
