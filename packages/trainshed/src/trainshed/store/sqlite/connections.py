"""Opens and checks SQLite connections, loads statements, defines how ports execute statements, and migrates a
database.

A `.sql` file consists of blocks. Each block starts with a line `-- name: something`. Other comment lines
belong to their block.

Migrations are the numbered scripts in `migrations/`. Schema 1 is the schema of the first release, 0.2.0. A
released script is never edited: each change gets a new number. Tests use dumps of earlier releases
(`tests/contract/store/dumps`). `PRAGMA user_version` contains the number of the last applied script. The
transaction of the script writes it.
"""

import logging
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from trainshed.core.errors import FailedPrecondition, NotFound
from trainshed.core.names import normalize_email
from trainshed.store.codec import Codec, Parameters
from trainshed.store.port import StoreOfOtherVersion, StoreUnreadable

log = logging.getLogger(__name__)

DATABASE_FILE = "trainshed.db"
_BUSY_TIMEOUT_MS = 5_000
_CACHE_KIB = 16 * 1024
_WAL_LIMIT_BYTES = 64 * 1024 * 1024


def open_writer(database: Path) -> sqlite3.Connection:
    """Open the only connection that writes. Data are on disk when a COMMIT returns. The caller executes BEGIN
    and COMMIT itself (`isolation_level=None`)."""
    connection = _open(database)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
    return connection


def open_reader(database: Path) -> sqlite3.Connection:
    """Open a read-only connection. Outside a transaction, each read sees all earlier commits."""
    connection = _open(database)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _open(database: Path) -> sqlite3.Connection:
    # Disable SQLite's check of the thread. Only one thread at a time uses a connection, but another thread
    # may have opened the connection.
    connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    # Replace invalid UTF-8 in a text, so that the rest of the row can still be read and reported.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    return connection


T = TypeVar("T")
R = TypeVar("R")


class Writing(Protocol):
    """Executes changes of the database. `sqlite.writer.Writer` implements it."""

    async def run(self, what: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Execute `work` in a transaction, which may include other commands. Return the result of `work`
        after the commit.

        If `work` raises an exception, this method raises it, and none of the changes of `work` are stored.
        `what`: the name of the port's method, for messages. Raise Unavailable if the database fails.
        """
        ...


class Reading(Protocol):
    """Executes reads of the database. `sqlite.snapshots.Snapshots` implements it."""

    def read_now(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` on this thread. Blocks. `read` sees one consistent state of the database, with all
        acknowledged writes."""
        ...

    async def read_async(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` without blocking the event loop. `read` sees the same state as with `read_now`."""
        ...


class Port:
    """One part of the store's methods. Every write is durable when its call returns. If a call raises an
    error, nothing was changed. All calls raise Unavailable if the disk or the database fails."""

    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def _records(self, sql: str, parameters: Parameters, codec: Codec[T]) -> tuple[T, ...]:
        """Return the records in the first column of a statement's result."""
        return await self._snapshots.read_async(lambda c: records(c, sql, parameters, codec))


def read_existing(
    connection: sqlite3.Connection, sql: str, parameters: Parameters, codec: Codec[T], what: object
) -> T:
    """Return the only record that a statement selects. Raise NotFound if it selects none, or
    FailedPrecondition if the record is unreadable. `what`: the name of the record in the error."""
    row = connection.execute(sql, parameters).fetchone()
    if row is None:
        raise missing(what)
    return codec.decode(row[0])


def records(
    connection: sqlite3.Connection, sql: str, parameters: Parameters, codec: Codec[T]
) -> tuple[T, ...]:
    """Return the readable records in the first column of a statement's result."""
    rows = connection.execute(sql, parameters)
    return tuple(decode_readable(rows, lambda row: codec.decode(row[0])))


def decode_readable(rows: Iterable[R], decode: Callable[[R], T]) -> Iterator[T]:
    """Yield the decoded rows. Unreadable rows are skipped, so that the other rows remain available (ADR
    44)."""
    for row in rows:
        try:
            yield decode(row)
        except FailedPrecondition as unreadable:
            log_once(str(unreadable))


@lru_cache(1000)
def log_once(failure: str) -> None:
    """Log a failure, but only once if it occurs repeatedly."""
    log.error("%s `trainshed doctor` shows it.", failure)


def missing(what: object) -> NotFound:
    return NotFound(f"{what} does not exist; check the project, the location and the id")


DAMAGED: Final = (
    "Stop the service, move trainshed.db away, and restore a backup into a new "
    "data directory (trainshed restore BACKUP --data DIR). `sqlite3 trainshed.db "
    ".recover` prints the readable rest of the file"
)
"""Advice in the error about a damaged database."""


def require_sound(connection: sqlite3.Connection, database: Path) -> None:
    """Check the whole database, which takes some seconds per GB. Raise StoreUnreadable if it is damaged."""
    try:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as failure:
        verdict = str(failure)
    if verdict != "ok":
        # Report only the last line of the check's result. The first line contains the name of the schema.
        raise damaged_error(database, verdict.splitlines()[-1])


def require_not_emptied(database: Path) -> None:
    """Raise StoreUnreadable if the file of an earlier database is empty. SQLite would create a new database
    in the file."""
    if database.exists() and not database.stat().st_size:
        raise damaged_error(database, "the file is empty")


def damaged_error(database: Path, cause: str) -> StoreUnreadable:
    """Return the error about a damaged database. `cause`: the reason, as a clause."""
    return StoreUnreadable(f"the job database {database} is damaged: {cause}. {DAMAGED}")


_HERE = Path(__file__).parent
_HEADING = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load_statements(file: str, folder: Path = _HERE) -> Mapping[str, str]:
    """Return the statements of a file by name. `folder`: the file's directory. Default: the directory of this
    module. Raise ValueError if a name occurs twice."""
    text = folder.joinpath(file).read_text(encoding="utf-8")
    parts = _HEADING.split(text)
    statements: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in statements:
            raise ValueError(f"{file} contains the SQL statement {name!r} twice; rename one")
        statements[name] = body.strip().removesuffix(";")
    return MappingProxyType(statements)


_SCRIPT = re.compile(r"(\d{4})_\w+\.sql")
MARK: Final = 0x54534845
"""The `PRAGMA application_id` of all databases since release 0.2.0. Databases of older releases have another
value."""


def scripts() -> tuple[tuple[int, str], ...]:
    """Return (number, SQL text) of every migration script. The numbers start at 1 and have no gaps. Raise
    ValueError if a number is missing."""
    folder = _HERE.joinpath("migrations")
    files = sorted(
        (int(match[1]), entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if (match := _SCRIPT.fullmatch(entry.name))
    )
    numbers = [number for number, _ in files]
    if numbers != list(range(1, len(files) + 1)):
        raise ValueError(f"the numbers of migration files must count from 1 without gaps, found {numbers}")
    return tuple(files)


def require_known(connection: sqlite3.Connection, database: Path) -> int:
    """Return the schema version of a database, or 0 for an empty one. Raise StoreUnreadable for a database
    that this version of the service cannot read or migrate."""
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if mark != MARK:
        if version:
            raise StoreOfOtherVersion(
                f"the job database {database} was written before release 0.2.0, which "
                "introduced a new database. Keep the checkout that wrote it to read its "
                "contents, or start with another data directory: --data DIRECTORY"
            )
        if connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
            raise StoreUnreadable(
                f"{database} is a database of another program. Start with another data "
                "directory: --data DIRECTORY"
            )
        return 0
    newest = scripts()[-1][0]
    if version > newest:
        raise StoreOfOtherVersion(
            f"the job database {database} has schema version {version}, but this version of "
            f"the service supports versions up to {newest}. A newer version wrote it. "
            "Install that version, or start with another data directory: --data DIRECTORY"
        )
    return version


def _normalize_email(email: bytes) -> bytes:
    kept = "surrogateescape"  # Bytes that are not valid UTF-8 remain unchanged.
    return normalize_email(email.decode(errors=kept)).encode(errors=kept)


def migrate(connection: sqlite3.Connection, database: Path = Path(":memory:")) -> None:
    """Apply the missing scripts, each in its own transaction. `database`: the file, for messages. Raise
    StoreUnreadable if this version of the service cannot migrate the database."""
    version = require_known(connection, database)
    connection.create_function("normalize_email", 1, _normalize_email)
    for number, script in scripts():
        if number <= version:
            continue
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE;\n{script}\nPRAGMA application_id = {MARK};\n"
                f"PRAGMA user_version = {number};\nCOMMIT;"
            )
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
