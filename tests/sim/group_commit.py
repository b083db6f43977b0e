"""The store's real group-commit writer under virtual time, with its thread, its queue, and a database on the
disk.

The thread only runs while the loop waits for it, so that a world is reproducible. It processes the queue, and
pauses before and after each COMMIT for the duration of the simulated disk. A crash at these points leaves the
database like a killed process: uncommitted writes are rolled back, and unanswered ones are not reported.
"""

import asyncio
import contextlib
import queue
import random
import shutil
import sqlite3
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

from tests.sim.engine.clock import Clock
from tests.sim.virtual import VirtualLoop
from trainshed.store.sqlite import database, writer
from trainshed.store.sqlite.connections import open_writer
from trainshed.store.sqlite.database import Store

_SHARED_MEMORY = Path("/dev/shm")
"""A memory file system if available, because these databases never need to survive a power loss."""


class Command(Protocol):
    """An item in the writer's queue (`store.sqlite.writer`)."""

    what: str
    outcome: tuple[Any, Exception | None]


class _Killed(BaseException):
    """Raised in the writer's thread when its service is killed."""


class _Thread(threading.Thread):
    """A thread that ends silently when its service is killed."""

    def run(self) -> None:
        with contextlib.suppress(_Killed):
            super().run()


class _Baton:
    """Decides whether the loop or the writer's thread runs. The thread calls `pause`, the loop calls the
    other methods.
    """

    def __init__(self) -> None:
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._where = ""
        self.is_dead = self.is_free = False

    def begin(self) -> None:
        """Wait until the new thread pauses."""
        self._mine.acquire()

    def resume(self) -> str:
        """Let the thread run until its next pause, and return its position."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.waits_for_thread = True
        self._theirs.release()
        self._mine.acquire()
        loop.waits_for_thread = False
        return self._where

    def finish(self, *, dead: bool) -> None:
        """Let the thread run to its end, or end it immediately if `dead`."""
        self.is_dead, self.is_free = self.is_dead or dead, True
        self._theirs.release()

    def pause(self, where: str) -> None:
        if not self.is_free:
            self._where = where
            self._mine.release()
            self._theirs.acquire()
        if self.is_dead:
            raise _Killed


class _Queue:
    """The writer's queue. The loop calls `put`, the thread `get` and `get_nowait`. `in_hand`: items taken
    since the thread was last idle.
    """

    def __init__(self, baton: _Baton, arrived: Callable[[Command], None]) -> None:
        self._baton = baton
        self._arrived = arrived
        self._waiting: deque[Command | None] = deque()
        self.in_hand: list[Command] = []

    def put(self, command: Command | None) -> None:
        self._waiting.append(command)
        if command is None:
            self._baton.finish(dead=False)
        else:
            self._arrived(command)

    def get(self) -> Command | None:
        self.in_hand = []
        while True:
            self._baton.pause("idle")
            if self._waiting:
                return self._take()

    def get_nowait(self) -> Command | None:
        if not self._waiting:
            raise queue.Empty
        return self._take()

    def _take(self) -> Command | None:
        command = self._waiting.popleft()
        if command is not None:
            self.in_hand.append(command)
        return command

    def __bool__(self) -> bool:
        return bool(self._waiting)


class _Connection:
    """The writer's connection, which pauses around each COMMIT."""

    def __init__(self, connection: sqlite3.Connection, baton: _Baton) -> None:
        self._connection = connection
        self._baton = baton
        self.is_served = False

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql != "COMMIT" or not self.is_served:
            return self._connection.execute(sql, *parameters)
        self._baton.pause("committing")
        done = self._connection.execute(sql)
        self._baton.pause("committed")
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class GroupCommits:
    """A store on the disk that survives its services: `open` it for each, and `abandon` it when a service is
    killed.

    `latency`: maximum ns of a write's wait and of its COMMIT. `arrived`: called with each requested write.
    `committing`: called before a COMMIT, with its writes. `committed`: called after it, with each stored
    write. Each of them may raise to kill the service.
    """

    def __init__(
        self,
        clock: Clock,
        seed: int,
        latency: int,
        *,
        arrived: Callable[[Command], None],
        committing: Callable[[list[str]], None],
        committed: Callable[[list[Command]], None],
    ) -> None:
        self._clock = clock
        self._random = random.Random(f"writer {seed}")
        self._latency = latency
        self._arrived, self._committing, self._committed = arrived, committing, committed
        parent = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        self.directory = Path(tempfile.mkdtemp(prefix="trainshed-sim-", dir=parent))
        self._baton = _Baton()
        self._queue = _Queue(self._baton, self._put)
        self._is_due = False
        self._store: Store | None = None
        #: Number of COMMITs, and of those with several writes.
        self.batches = self.company = 0

    def open(self) -> Store:
        baton = self._baton = _Baton()
        self._queue = _Queue(baton, self._put)
        self._is_due = False
        connections: list[_Connection] = []

        def open_connection(path: Path) -> _Connection:
            connections.append(_Connection(open_writer(path), baton))
            return connections[0]

        names = SimpleNamespace(SimpleQueue=lambda: self._queue, Empty=queue.Empty)
        with (
            mock.patch.object(database, "open_writer", open_connection),
            mock.patch.object(writer, "queue", names),
            mock.patch.object(writer, "threading", SimpleNamespace(Thread=_Thread)),
        ):
            self._store = database.open_database(self.directory)
        connections[0].is_served = True
        baton.begin()
        return self._store

    def abandon(self) -> None:
        """Drop the database connection and the thread of a killed service."""
        if self._store is not None:
            self._baton.finish(dead=True)
            self._store.close()
            self._store = None

    def close(self) -> None:
        """Delete the database when no service needs it any longer."""
        self.abandon()
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- on the loop ---

    def _put(self, command: Command) -> None:
        self._arrived(command)
        if not self._is_due and not self._queue.in_hand:
            self._resume_later()

    def _resume_later(self) -> None:
        self._is_due = True
        baton = self._baton
        self._clock.after(self._random.randint(0, self._latency), lambda: self._resume(baton))

    def _resume(self, baton: _Baton) -> None:
        if baton is not self._baton or baton.is_free:
            return  # of a killed service
        self._is_due = False
        match baton.resume():
            case "committing":
                self._committing([command.what for command in self._queue.in_hand])
                self._resume_later()
            case "committed":
                self.batches += 1
                in_hand = self._queue.in_hand
                self.company += len(in_hand) > 1
                self._committed([command for command in in_hand if command.outcome[1] is None])
                self._resume_later()
            case _:
                if self._queue:
                    self._resume_later()
