"""Looks a database through that a service did not close, and says what to do about one that is damaged."""

import sqlite3
from pathlib import Path
from typing import Final

from trainshed.store.port import StoreUnreadable

DAMAGED: Final = (
    "Stop the service, move trainshed.db away, and restore a backup into a new data directory (trainshed restore BACKUP --data "
    "DIR); what can still be read of it, `sqlite3 trainshed.db .recover` prints"
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
    """Raise StoreUnreadable for a file of no bytes where a service has had a database: SQLite would begin a new one."""
    if database.exists() and not database.stat().st_size:
        raise damaged(database, "it has no bytes any more")


def damaged(database: Path, cause: str) -> StoreUnreadable:
    """The error for a database that no service can use."""
    return StoreUnreadable(f"the job database {database} is damaged: {cause}. {DAMAGED}")
