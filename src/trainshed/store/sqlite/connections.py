"""SQLite connections: how they are opened and checked, and how doors have their statements executed.

A `.sql` file holds blocks, each under a line `-- name: something`; other comment lines stay with their block.
"""

import contextlib
import gc
import re
import sqlite3
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from trainshed.store.port import StoreUnreadable

_BUSY_TIMEOUT_MS = 10_000
_CACHE_KIB = 16 * 1024
_WAL_LIMIT_BYTES = 64 * 1024 * 1024


def open_writer(database: Path) -> sqlite3.Connection:
    """The one connection that writes. Every COMMIT on it is on the disk when it returns.

    Transactions are written out by the caller (`isolation_level=None`).
    """
    connection = _open(database)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # macOS needs this to reach the disk itself; elsewhere it does nothing.
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
    return connection


def open_reader(database: Path) -> sqlite3.Connection:
    """A connection that cannot write. Outside a transaction it sees every commit made so far."""
    connection = _open(database)
    connection.execute("PRAGMA query_only = ON")
    return connection


def open_memory() -> sqlite3.Connection:
    """A new database in memory, to read and to write, for as long as the connection is open."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = MEMORY")
    return connection


def _open(database: Path) -> sqlite3.Connection:
    # Each connection is used by one thread at a time, which need not be the one that opened it.
    connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    # What is no text shall not keep the rest of its row from being read, and told.
    connection.text_factory = _text
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    return connection


def release_pages(connection: sqlite3.Connection) -> None:
    """Give back the pages of the database that the connection has in memory, up to 16 MB."""
    connection.execute("PRAGMA shrink_memory")


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


T = TypeVar("T")


class Writing(Protocol):
    """Executes what changes the database: `sqlite.writer.Writer`, `sqlite.inline.InlineStore`."""

    async def run(self, what: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Execute `work` in one transaction, alone or with others', and return when it is committed.

        What `work` raises is raised here, and nothing of it is stored. `what`: the door's method, for
        messages. Raises Unavailable if the database fails.
        """
        ...


class Reading(Protocol):
    """Executes what reads: `sqlite.snapshots.Snapshots`, `sqlite.inline.InlineStore`."""

    def here(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` at once, blocking; it sees one state of the database, all acknowledged writes in it."""
        ...

    async def aside(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` where it does not hold up the event loop; otherwise as `here`."""
        ...


@contextlib.contextmanager
def no_collection() -> Generator[None]:
    """Python's cycle collector looks at every new object again and again while a quarter of a million is made
    of which none is garbage: half of the time that a long history takes."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


DAMAGED: Final = (
    "Stop the service, move trainshed.db away, and restore a backup into a new data directory (trainshed "
    "restore BACKUP --data DIR); what can still be read of it, `sqlite3 trainshed.db .recover` prints"
)
"""What to do about a damaged database."""


def require_sound(connection: sqlite3.Connection, database: Path) -> None:
    """Look through all of it, some seconds for each GB. Raises StoreUnreadable."""
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as failure:
        found = str(failure)
    if found != "ok":
        # Its first line names the schema.
        raise damaged(database, found.splitlines()[-1])


def require_not_emptied(database: Path) -> None:
    """Raise StoreUnreadable for a file of no bytes where a service has had a database: SQLite would begin a
    new one."""
    if database.exists() and not database.stat().st_size:
        raise damaged(database, "it has no bytes any more")


def damaged(database: Path, cause: str) -> StoreUnreadable:
    """The error for a database that no service can use."""
    return StoreUnreadable(f"the job database {database} is damaged: {cause}. {DAMAGED}")


_HERE = Path(__file__).parent
_HEADING = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load_statements(file: str) -> Mapping[str, str]:
    """The statements of a file beside this one, by name. Raises ValueError if a name appears twice."""
    text = _HERE.joinpath(file).read_text(encoding="utf-8")
    parts = _HEADING.split(text)
    statements: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in statements:
            raise ValueError(f"{file} names the statement {name!r} twice; rename one")
        statements[name] = body.strip().removesuffix(";")
    return MappingProxyType(statements)
