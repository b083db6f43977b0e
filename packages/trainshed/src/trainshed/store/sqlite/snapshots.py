"""Runs reads on a consistent snapshot: short reads on the event loop's own thread, long reads on another
thread.

A lookup of one row takes tens of microseconds, which is less than switching to another thread and back. A
page of a hundred jobs takes milliseconds. In this time, the event loop should run other tasks.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from trainshed.core.errors import Unavailable
from trainshed.store.sqlite.connections import DAMAGED, open_reader

T = TypeVar("T")


class Snapshots:
    """Two read-only connections to `database`. `read_now` may be called only on the event loop's thread."""

    def __init__(self, database: Path) -> None:
        self._near = open_reader(database)
        self._far = open_reader(database)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        self._closed = False

    def read_now(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` on this thread. Blocks. `read` sees one consistent state of the database, with all
        acknowledged writes."""
        self._check_open()
        return self._on_snapshot(self._near, read)

    async def read_async(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` on the reader thread. `read` sees the same state as with `read_now`."""
        self._check_open()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._on_snapshot, self._far, read)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._thread.shutdown(wait=True)
        self._near.close()
        self._far.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the job store is closed because the service is stopping; try again later")

    def _on_snapshot(self, connection: sqlite3.Connection, read: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection.execute("BEGIN")
            try:
                return read(connection)
            finally:
                connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise read_error(error) from error


def read_error(error: sqlite3.DatabaseError) -> Unavailable:
    """Return the error for the caller of a read that failed in the database."""
    if not isinstance(error, sqlite3.OperationalError):
        return Unavailable(f"the job database is damaged: {error}. {DAMAGED}")
    return Unavailable(
        f"the job store could not read: {error}. Check the disk of the data directory, "
        "then send the request again"
    )
