"""Takes a deleted study out of the database: hidden at once, its rows piece by piece, so that nobody waits long for the writer.

A study is hidden once it has no row in `studies`; while one in `trial_numbers` is left of it, there may be trials,
measurements and operations to delete. A crash in between leaves them, and the next start goes on.
"""

import sqlite3
from typing import Final

from trainshed.core.names import StudyName
from trainshed.core.study.trials import StudyUid
from trainshed.store.sqlite import operations
from trainshed.store.statements import load_statements

_SQL = load_statements("trainshed.store.sqlite", "deleting.sql")
CHUNK: Final = 4_000
"""Rows of one transaction: some 20 ms."""


def hide_study(connection: sqlite3.Connection, uid: StudyUid, name: StudyName, now: int) -> None:
    """From now on nobody finds the study; its names are free, and what runs for it has failed."""
    connection.execute(_SQL["hide_study"], {"uid": uid})
    operations.fail_operations_of(connection, uid, str(name), now)


def delete_some(connection: sqlite3.Connection, uid: StudyUid) -> bool:
    """Delete up to CHUNK rows of a hidden study; True if nothing is left of it."""
    left = CHUNK
    # Trials first: of one that is there a client may still store a measurement.
    for statement in ("delete_trials", "delete_measurements", "delete_operations"):
        left -= connection.execute(_SQL[statement], {"uid": uid, "most": left}).rowcount
        if left <= 0:
            return False
    connection.execute(_SQL["delete_numbers"], {"uid": uid})
    return True


def finish_deleting(connection: sqlite3.Connection) -> None:
    """Delete what a crash has left of hidden studies. Blocks. What the disk does not allow is left for the next start."""
    for (uid,) in connection.execute(_SQL["hidden_studies"]).fetchall():
        is_done = False
        while not is_done:
            connection.execute("BEGIN IMMEDIATE")
            try:
                is_done = delete_some(connection, uid)
                connection.execute("COMMIT")
            except sqlite3.OperationalError:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                return
