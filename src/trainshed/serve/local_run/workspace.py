"""The directory of one local run below the data directory, and who clears it away, whatever becomes of the
run.

A child that was forked early waits for the end of the run's process. If that was killed it ends the program,
which a shim would let run on, and removes what is left; and it does so for earlier runs that were killed
together with their caretakers. Whoever holds the lock of a directory may clear it.
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
"""Below the data directory."""
_LOCK = "lock"
_KEPT = "kept"
_CAUSE = "the local run was killed"


class Workspace:
    """The directory of one local run. Made before there are threads: it forks."""

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
        """It is to stay when the run is over, until somebody deletes it."""
        (self.directory / _KEPT).touch()

    def close(self) -> None:
        """The run is over: clear it away, and what of its program should live still. Blocks for as long as
        that takes."""
        with contextlib.suppress(OSError):
            _empty(self.directory)
        os.close(self._lock)
        # The caretaker looks once more, and ends.
        os.close(self._word)


def _start_caretaker(directory: Path) -> int:
    """Fork it; what is returned is open as long as this process lives and no longer."""
    theirs, ours = os.pipe()
    if os.fork() == 0:
        _take_care(theirs, directory)
    os.close(theirs)
    return ours


def _take_care(ended: int, directory: Path) -> NoReturn:
    try:
        # Ctrl-C and a closed terminal are for the run, which then ends by itself.
        os.setsid()
        kernel.name_process("ts-caretaker")
        # Whoever reads what the run says waits until nobody has its handles.
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
    """End what lives of a run whose process is gone, and remove its directory; nothing if it is kept, or in
    use."""
    with contextlib.suppress(OSError):
        lock = _take(directory, wait=wait)
        if lock is None:
            return
        try:
            _empty(directory)
        finally:
            os.close(lock)


def _empty(directory: Path) -> None:
    """For holders of its lock. What cannot be ended yet, because it waits for a device, a later run tries
    again."""
    ended = [
        journal.expel(str(slot), 1, _CAUSE) for slot in directory.glob("slots/[0-9]*/[0-9]*/*/")
    ]
    if all(ended) and not (directory / _KEPT).exists():
        trees.delete(str(directory))


def _take(directory: Path, *, wait: bool) -> int | None:
    """The lock of a run's directory; None: its run goes on. Raises OSError: it is not there."""
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
