"""Opens SQLite connections with the settings that durability and readers need, and nothing else."""

import sqlite3
from pathlib import Path

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


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
