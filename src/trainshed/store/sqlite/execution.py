"""How a door has its statements executed: durably in company, or at once on the calling thread."""

import contextlib
import gc
import sqlite3
from collections.abc import Callable, Generator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Writing(Protocol):
    """Executes what changes the database: `sqlite.writer.Writer`, `sqlite.inline.InlineStore`."""

    async def run(self, what: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Execute `work` in one transaction, alone or with others', and return when it is committed.

        What `work` raises is raised here, and nothing of it is stored. `what`: the door's method, for messages.
        Raises Unavailable if the database fails.
        """
        ...


class Reading(Protocol):
    """Executes what reads: `sqlite.snapshots.Snapshots`, `sqlite.inline.InlineStore`."""

    def here(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` at once, blocking; it sees one state of the database, all acknowledged writes in it."""
        ...

    async def aside(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run `read` where it does not hold up the event loop; otherwise as `here`."""
        ...


@contextlib.contextmanager
def no_collection() -> Generator[None]:
    """Python's cycle collector looks at every new object again and again while a quarter of a million is made of which
    none is garbage: half of the time that a long history takes."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
