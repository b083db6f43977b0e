"""Brings a database to the newest schema with the numbered scripts in `migrations/`. Schema 1 is that of
release 0.2.0.

A released script is never edited: a change gets a new number, and the release before it has left a dump
(`tests/contract/store/dumps`). `PRAGMA user_version` holds the number of the last script applied, written in
the same transaction as the script's own statements.
"""

import re
import sqlite3
from pathlib import Path
from typing import Final

from trainshed.store.port import StoreOfOtherVersion, StoreUnreadable

_HERE = Path(__file__).parent
_SCRIPT = re.compile(r"(\d{4})_\w+\.sql")
MARK: Final = 0x54534844
"""The `PRAGMA application_id` of every database of the service. Those before release 0.2.0 had none."""


def scripts() -> tuple[tuple[int, str], ...]:
    """Return (number, SQL text) of every script, ascending from 1 without gaps. Raises ValueError."""
    folder = _HERE.joinpath("migrations")
    files = sorted(
        (int(match[1]), entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if (match := _SCRIPT.fullmatch(entry.name))
    )
    numbers = [number for number, _ in files]
    if numbers != list(range(1, len(files) + 1)):
        raise ValueError(f"migrations must count from 1 without gaps, found {numbers}")
    return tuple(files)


def require_known(connection: sqlite3.Connection, database: Path) -> int:
    """Return the schema version of a database, 0 for an empty one. Raises StoreUnreadable for one that this
    version of the service cannot read or bring to its own schema."""
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if mark != MARK:
        if version:
            raise StoreOfOtherVersion(
                f"the job database {database} was written before release 0.2.0, which began its database "
                "anew. Keep the checkout that wrote it for what is in there, or begin with another data "
                "directory: --data DIRECTORY"
            )
        if connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():
            raise StoreUnreadable(
                f"{database} is a database of another program. Begin with another data directory: "
                "--data DIRECTORY"
            )
        return 0
    newest = scripts()[-1][0]
    if version > newest:
        raise StoreOfOtherVersion(
            f"the job database {database} has schema version {version}, this version of the service knows up "
            f"to {newest}: it was written by a newer one. Install that version, or start with another data "
            "directory: --data DIRECTORY"
        )
    return version


def migrate(connection: sqlite3.Connection, database: Path = Path(":memory:")) -> None:
    """Apply the scripts that are missing, each in a transaction of its own. `database`: the file, for
    messages. Raises StoreUnreadable."""
    version = require_known(connection, database)
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
