"""Opens and checks SQLite connections, and loads statements; defines how the ports have theirs executed.

A `.sql` file consists of blocks, each under a line `-- name: something`; other comment lines belong to their
block.
"""

import contextlib
import gc
import re
import sqlite3
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from trainshed.core.errors import NotFound
from trainshed.store.codec import Codec
from trainshed.store.port import StoreUnreadable

_BUSY_TIMEOUT_MS = 10_000
_CACHE_KIB = 16 * 1024
_WAL_LIMIT_BYTES = 64 * 1024 * 1024


def open_writer(database: Path) -> sqlite3.Connection:
    """Open the one connection that writes. Every COMMIT on it is on disk when it returns.

    The caller executes BEGIN and COMMIT itself (`isolation_level=None`).
    """
    connection = _open(database)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # macOS needs this to write to the disk itself; elsewhere it does nothing.
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
    return connection


def open_reader(database: Path) -> sqlite3.Connection:
    """Open a connection that cannot write. Outside a transaction it sees every commit made so far."""
    connection = _open(database)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _open(database: Path) -> sqlite3.Connection:
    # Each connection is used by one thread at a time, which need not be the one that opened it.
    connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    # Text that is not valid UTF-8 must not prevent the rest of its row from being read and reported.
    connection.text_factory = _text
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    return connection


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


T = TypeVar("T")
Parameters = dict[str, Any]


class Writing(Protocol):
    """Executes changes of the database: `sqlite.writer.Writer`."""

    async def run(self, what: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Execute `work` in one transaction, alone or with others, and return its result when it is
        committed.

        Exceptions of `work` are raised here, and nothing of it is stored. `what`: the port's method, for
        messages. Raises Unavailable if the database fails.
        """
        ...


class Reading(Protocol):
    """Executes reads: `sqlite.snapshots.Snapshots`."""

    def here(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` immediately, blocking. It sees one state of the database, with all acknowledged
        writes."""
        ...

    async def aside(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` where it does not hold up the event loop; otherwise as `here`."""
        ...


class Port:
    """One part of the store's calls. Every write is durable when its call returns; a raised error means that
    nothing happened. All raise Unavailable when the disk or the database fails."""

    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def _records(self, sql: str, parameters: Parameters, codec: Codec[T]) -> tuple[T, ...]:
        """Return the records in the first column of what a statement selects."""
        return await self._snapshots.aside(lambda c: records(c, sql, parameters, codec))


def existing(
    connection: sqlite3.Connection, sql: str, parameters: Parameters, codec: Codec[T], what: object
) -> T:
    """Return the one record that a statement selects. Raises NotFound, which names `what`."""
    row = connection.execute(sql, parameters).fetchone()
    if row is None:
        raise missing(what)
    return codec.decode(row[0])


def records(
    connection: sqlite3.Connection, sql: str, parameters: Parameters, codec: Codec[T]
) -> tuple[T, ...]:
    """Return the records in the first column of what a statement selects."""
    return tuple([codec.decode(row[0]) for row in connection.execute(sql, parameters)])


def missing(what: object) -> NotFound:
    return NotFound(f"{what} does not exist; check the project, the location and the id")


@contextlib.contextmanager
def no_collection() -> Generator[None]:
    """Pause Python's cycle collector. It would look again and again at a quarter of a million new objects of
    which none is garbage, which takes half of the time of reading a long history."""
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
    """Check the whole database, which takes some seconds per GB. Raises StoreUnreadable."""
    try:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as failure:
        verdict = str(failure)
    if verdict != "ok":
        # Its first line names the schema.
        raise damaged(database, verdict.splitlines()[-1])


def require_not_emptied(database: Path) -> None:
    """Raise StoreUnreadable if the file of an earlier database is empty: SQLite would begin a new one."""
    if database.exists() and not database.stat().st_size:
        raise damaged(database, "it has no bytes any more")


def damaged(database: Path, cause: str) -> StoreUnreadable:
    """Return the error for a database that no service can use."""
    return StoreUnreadable(f"the job database {database} is damaged: {cause}. {DAMAGED}")


_HERE = Path(__file__).parent
_HEADING = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load_statements(file: str) -> Mapping[str, str]:
    """Return the statements of a file in this directory, by name. Raises ValueError if a name appears
    twice."""
    text = _HERE.joinpath(file).read_text(encoding="utf-8")
    parts = _HEADING.split(text)
    statements: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in statements:
            raise ValueError(f"{file} names the statement {name!r} twice; rename one")
        statements[name] = body.strip().removesuffix(";")
    return MappingProxyType(statements)
