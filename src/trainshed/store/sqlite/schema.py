"""Brings a database to the newest schema with the numbered scripts in `migrations/`.

A released script is never edited: a change gets a new number. `PRAGMA user_version` holds the number of the
last script applied, written in the same transaction as the script's own statements.
"""

import re
import sqlite3
from pathlib import Path

from trainshed.store.port import StoreTooNew

_HERE = Path(__file__).parent
_SCRIPT = re.compile(r"(\d{4})_\w+\.sql")


def scripts() -> tuple[tuple[int, str], ...]:
    """Return (number, SQL text) of every migration, ascending from 1 without gaps. Raises ValueError."""
    folder = _HERE.joinpath("migrations")
    found = sorted(
        (int(match[1]), entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if (match := _SCRIPT.fullmatch(entry.name))
    )
    numbers = [number for number, _ in found]
    if numbers != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations must count from 1 without gaps, found {numbers}")
    return tuple(found)


def newest() -> int:
    """Return the schema version that this service writes."""
    return scripts()[-1][0]


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the scripts that are missing, each in a transaction of its own. Raises StoreTooNew."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    available = scripts()
    newest = available[-1][0]
    if version > newest:
        raise StoreTooNew(
            f"the database has schema version {version}, this version of the service knows up to "
            f"{newest}: it was written by a newer one. Install that version, or start with another "
            "data directory."
        )
    for number, script in available:
        if number <= version:
            continue
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;"
            )
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
