"""The group-commit writer: one thread, one connection, one durable COMMIT for all waiting commands.

A command is a function of the connection. It may be called again after its changes were rolled back. Its
caller receives the result only after the COMMIT.

If one command of a group fails, the whole group is rolled back. All commands are then executed again, each
under a SAVEPOINT, so that a failing command reverts only its own changes. A SAVEPOINT takes as long as a
small command, so it is not used otherwise. A command that waits alone is committed immediately. While the
disk is busy with a COMMIT, new commands form the next group.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct

from trainshed.core.errors import Unavailable
from trainshed.store.audit import mark_stored, with_audit_record
from trainshed.store.sqlite.presence import OpenFiles
from trainshed.store.sqlite.snapshots import read_error

T = TypeVar("T")

_MAX_COMMIT_SIZE = 512


class _Command(Struct, eq=False):
    """A queued write. `outcome`: set to (result, None) or (None, error) for the caller."""

    what: str
    work: Callable[[sqlite3.Connection], Any]
    future: "asyncio.Future[Any]"
    outcome: tuple[Any, Exception | None] = (None, None)


class Writer:
    """Executes writes on its own thread. Owns `connection` (opened with `isolation_level=None`) until
    `close`. `files`: the files of the open database. While one of them is missing, nothing is written."""

    def __init__(self, connection: sqlite3.Connection, files: OpenFiles) -> None:
        self._connection = connection
        self._files = files
        self._queue: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="store-writer", daemon=True)
        self._thread.start()

    async def run(self, what: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Execute `work` in the next transaction, and return its result when it is durable
        (`sqlite.connections.Writing`). If the caller is cancelled, the write may be stored or not."""
        work = with_audit_record(work)
        if self._closed:
            raise Unavailable("the job store is closed because the service is stopping; try again later")
        command = _Command(what, work, asyncio.get_running_loop().create_future())
        self._queue.put(command)
        result = await command.future
        mark_stored()
        return result

    def close(self) -> None:
        """Commit the queued writes, stop the thread, and close the connection. Blocks."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        # If a file was removed, this call saves its data, which would be lost when this process ends.
        self._files.fault(self._connection)
        self._connection.close()

    def _serve(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            last = self._drain_into(batch)
            try:
                # Write nothing while a file is missing. Commits to a removed file would be lost at the next
                # start of the service.
                if fault := self._files.fault(self._connection):
                    raise Unavailable(f"nothing was stored: {fault}")
                self._execute(batch)
            except Exception as error:
                if _is_locked(error):
                    # Add commands that arrived in the meantime. Otherwise, a command could wait for two
                    # timeouts.
                    last = self._drain_into(batch, most=None) or last
                self._fail_all(batch, error)
            # If the event loop is closed, the callers no longer exist. Their writes are stored nevertheless.
            with contextlib.suppress(RuntimeError):
                first.future.get_loop().call_soon_threadsafe(_settle, batch)
            if last:
                return

    def _drain_into(self, batch: list[_Command], most: int | None = _MAX_COMMIT_SIZE) -> bool:
        """Add waiting commands to the batch, up to `most` in total (None = all). Do not wait for more. Return
        whether the writer is being closed."""
        while most is None or len(batch) < most:
            try:
                command = self._queue.get_nowait()
            except queue.Empty:
                return False
            if command is None:
                return True
            batch.append(command)
        return False

    def _execute(self, batch: list[_Command]) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            for command in batch:
                command.outcome = (command.work(self._connection), None)
        except Exception:
            # If the disk is full or fails, SQLite itself rolls back the whole transaction. Then the commands
            # are not executed again, and all callers receive the error.
            if not self._connection.in_transaction:
                raise
            execute("ROLLBACK")
            execute("BEGIN IMMEDIATE")
            self._execute_apart(batch)
        execute("COMMIT")

    def _execute_apart(self, batch: list[_Command]) -> None:
        execute = self._connection.execute
        for command in batch:
            execute("SAVEPOINT command")
            try:
                command.outcome = (command.work(self._connection), None)
            except Exception as error:
                if not self._connection.in_transaction:
                    raise
                execute("ROLLBACK TO command")
                command.outcome = (None, public_error(command.what, error))
            execute("RELEASE command")

    def _fail_all(self, batch: list[_Command], error: Exception) -> None:
        # If the rollback fails, too, the next BEGIN fails, and its callers receive the error. The thread must
        # not stop.
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        for command in batch:
            command.outcome = (None, public_error(command.what, error))


def public_error(what: str, error: Exception) -> Exception:
    """Return the exception for the caller. `what`: the name of the port's method."""
    if isinstance(error, sqlite3.IntegrityError) or not isinstance(error, sqlite3.DatabaseError):
        return error
    if not isinstance(error, sqlite3.OperationalError):
        return read_error(error)
    if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
        unavailable = Unavailable(
            f"the disk of the data directory is full, so nothing was stored ({what}); free "
            "space on it, then send the request again"
        )
    else:
        unavailable = Unavailable(
            f"the job store could not write ({what}): {error}. Nothing was stored. Check "
            "the disk of the data directory, then send the request again"
        )
    unavailable.__cause__ = error
    return unavailable


def _is_locked(error: Exception) -> bool:
    """Return whether the error occurred because another process has locked the database for too long."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_BUSY


def _settle(commands: list[_Command]) -> None:
    for command in commands:
        if command.future.done():
            continue
        result, error = command.outcome
        if error is None:
            command.future.set_result(result)
        else:
            command.future.set_exception(error)
