"""The directory of one local run below the data directory, and its removal, however the run ends.

A caretaker, a child that was forked early, waits for the end of the run's process. If that was killed, the
caretaker ends the program, which a shim would let run on, and removes what is left. It also does so for
earlier runs that were killed together with their caretakers. The lock of a directory gives the right to clear
it.
"""

import contextlib
import fcntl
import os
import secrets
from pathlib import Path
from typing import NoReturn

from trainshed.replica.supervisor import journal
from trainshed.replica.system import kernel, trees

HOME = "local-runs"
"""The directory of all runs, below the data directory."""
_LOCK = "lock"
_KEPT = "kept"
_CAUSE = "the local run was killed"


class Workspace:
    """The directory of one local run. Must be made before there are threads, because it forks."""

    def __init__(self, data: Path) -> None:
        """Raises OSError."""
        home = data / HOME
        home.mkdir(mode=0o700, exist_ok=True)
        self.directory = home / secrets.token_hex(6)
        self.directory.mkdir(mode=0o700)
        self._word = _start_caretaker(self.directory)
        lock = _take(self.directory, wait=True)
        assert lock is not None
        self._lock = lock

    def keep(self) -> None:
        """Keep the directory after the run, until somebody deletes it."""
        (self.directory / _KEPT).touch()

    def close(self) -> None:
        """End what still lives of the run's program, and remove the directory, unless it is kept. Blocks for
        as long as that takes."""
        with contextlib.suppress(OSError):
            _empty(self.directory)
        os.close(self._lock)
        # The caretaker checks once more, and ends.
        os.close(self._word)


def _start_caretaker(directory: Path) -> int:
    """Fork the caretaker. Return a descriptor that stays open exactly as long as this process lives."""
    theirs, ours = os.pipe()
    if os.fork() == 0:
        _take_care(theirs, directory)
    os.close(theirs)
    return ours


def _take_care(ended: int, directory: Path) -> NoReturn:
    try:
        # Ctrl-C and a closed terminal are meant for the run, which then ends by itself.
        os.setsid()
        kernel.name_process("ts-caretaker")
        # Readers of the run's output wait until no process has its handles open.
        kernel.close_inherited(ended)
        os.chdir("/")
        for other in directory.parent.iterdir():
            if other != directory:
                _clear(other, wait=False)
        os.read(ended, 1)
        _clear(directory, wait=True)
    finally:
        os._exit(0)


def _clear(directory: Path, *, wait: bool) -> None:
    """End what lives of a run whose process is gone, and remove its directory; does nothing if the run goes
    on."""
    with contextlib.suppress(OSError):
        lock = _take(directory, wait=wait)
        if lock is None:
            return
        try:
            _empty(directory)
        finally:
            os.close(lock)


def _empty(directory: Path) -> None:
    """End what lives of a run, and remove its directory unless it is kept; the caller holds its lock.
    Processes that cannot be ended yet, because they wait for a device, are left for a later run."""
    ended = [
        journal.expel(str(slot), 1, _CAUSE) for slot in directory.glob("slots/[0-9]*/[0-9]*/*/")
    ]
    if all(ended) and not (directory / _KEPT).exists():
        trees.delete(str(directory))


def _take(directory: Path, *, wait: bool) -> int | None:
    """Take the lock of a run's directory; None: its run goes on. Raises OSError if the directory does not
    exist."""
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
