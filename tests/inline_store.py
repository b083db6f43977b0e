"""The store for simulations: the same ports over the same SQL, in memory, on the calling thread.

It needs no thread, group commit or event loop. A call executes, commits and returns without suspending, so
that it runs under virtual time. Hooks around each commit let a test stop "the process" at exactly that point.
The data lives as long as the store. To simulate a restart, keep the store and recreate everything else.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeVar

from trainshed.core.errors import Unavailable
from trainshed.store.audit import mark_stored, with_audit_record
from trainshed.store.sqlite.connections import migrate
from trainshed.store.sqlite.database import Store
from trainshed.store.sqlite.snapshots import read_error
from trainshed.store.sqlite.writer import public_error

T = TypeVar("T")

Hook = Callable[[str], None]
"""Called with the name of the port's method, such as "commit" or "create"."""


class InlineStore(Store):
    """An open store from `open_inline`. Tests may change the hooks at any time.

    If `before_commit` raises, nothing of the call is stored. If `after_commit` raises, everything is stored,
    but the caller receives the exception. A write that fails on its own calls neither hook.
    """

    def __init__(
        self, connection: sqlite3.Connection, before_commit: Hook | None, after_commit: Hook | None
    ) -> None:
        self._connection = connection
        self._open = True
        self.before_commit = before_commit
        self.after_commit = after_commit
        super().__init__(self, self)

    async def run(self, what: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Implements `sqlite.connections.Writing`."""
        result = self._run(what, with_audit_record(work))
        mark_stored()
        return result

    def _run(self, what: str, work: Callable[[sqlite3.Connection], T]) -> T:
        self._check_open()
        execute = self._connection.execute
        execute("BEGIN")
        try:
            result = work(self._connection)
            if self.before_commit is not None:
                self.before_commit(what)
            execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise public_error(what, error) from error
            raise
        if self.after_commit is not None:
            self.after_commit(what)
        return result

    def read_now(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Implements `sqlite.connections.Reading`. It is the only user of its connection, so a read sees a
        single state.
        """
        self._check_open()
        try:
            return read(self._connection)
        except sqlite3.OperationalError as error:
            raise read_error(error) from error

    async def read_async(self, read: Callable[[sqlite3.Connection], T]) -> T:
        return self.read_now(read)

    def close(self) -> None:
        """Close the store and lose its data."""
        if self._open:
            self._open = False
            self._connection.close()

    def _check_open(self) -> None:
        if not self._open:
            raise Unavailable("the job store is closed; open a new one")


@cache
def _empty() -> sqlite3.Connection:
    """An empty database that is copied for each store: simulations create hundreds."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    migrate(connection)
    return connection


def open_inline(before_commit: Hook | None = None, after_commit: Hook | None = None) -> InlineStore:
    """Return a new empty store in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    _empty().backup(connection)
    connection.execute("PRAGMA journal_mode = MEMORY")
    return InlineStore(connection, before_commit, after_commit)


def run_inline(reading: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call to an inline store, which never suspends, so that hooks can call it."""
    try:
        reading.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the inline store gave way")
