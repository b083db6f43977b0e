"""Appends to files while a replica runs, and outlasts times when their disk takes nothing.

`Appender` keeps in memory, in order, what could not be written; `DiskRetries` tries again.
"""

import errno
import os
from collections.abc import Callable

from trainshed.replica.system import loop

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
"""Seconds between two tries. No kernel says when a disk takes more: the only way to know is to write."""


def takes_nothing(error: OSError) -> bool:
    """Whether the error says that the disk is full or read-only, which ends when somebody sees to it, and
    loses nothing; after other errors nobody knows what the file holds."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


_READ_BACK = 1 << 20
"""Bytes; more than any two lines of such a file take."""


class Appender:
    """Appends to a file of lines, with what does not fit waiting in memory. `handle`: of the file, owned from
    here on. `size`: its bytes, with those that wait."""

    def __init__(self, handle: int, size: int) -> None:
        self._handle = handle
        self._waiting = b""
        self.size = size

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def append(self, data: bytes) -> bool:
        """Append data, at once or as soon as there is room (`flush`); return whether everything is in the
        file. Raises OSError for errors other than a full disk."""
        self._waiting += data
        self.size += len(data)
        return self.flush()

    def flush(self) -> bool:
        """Write waiting data, as far as there is room; return whether everything is in the file. Raises
        OSError as `append` does."""
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._handle, self._waiting) :]
        except OSError as error:
            if not takes_nothing(error):
                raise
        return not self._waiting

    def sync(self) -> bool:
        """Sync the file, so that it survives a power cut. Returns False if there is no room for that now
        (network file systems notice late), so that it has to be repeated. Raises OSError."""
        try:
            os.fdatasync(self._handle)
        except OSError as error:
            if not takes_nothing(error):
                raise
            return False
        return True

    def close(self) -> None:
        """Close the file; waiting data is lost."""
        os.close(self._handle)


def reopened(path: str) -> tuple[Appender, list[bytes]]:
    """Continue a file, which need not exist; return it with the lines at its end, of which the first may be
    half a line. An incomplete last line, which was never readable, is cut off. Syncing the file makes a new
    one's name durable as well (`journal.append`). Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    # Only the last lines matter: a restart must not wait for megabytes to be read.
    skipped = max(0, os.fstat(handle).st_size - _READ_BACK)
    data = os.pread(handle, _READ_BACK, skipped)
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.ftruncate(handle, skipped + end)
    return Appender(handle, skipped + end), data[:end].splitlines()


class DiskRetries:
    """Repeats writes that a disk did not take, soon at first, then each second, until they succeed.
    `changed`: called with True when something begins to wait, and with False when nothing waits any more."""

    def __init__(self, events: loop.Loop, changed: "Callable[[bool], None]") -> None:
        self._events = events
        self._changed = changed
        self._tries: "list[Callable[[], bool]]" = []
        self._pause = _FIRST_PAUSE
        self._is_asked_for = False

    @property
    def has_waiting(self) -> bool:
        return bool(self._tries)

    def wait(self, write: "Callable[[], bool]") -> None:
        """Call `write` until it returns True or raises. Has no effect if it waits already."""
        if write in self._tries:
            return
        begins = not self._tries
        self._tries.append(write)
        if begins:
            self._pause = _FIRST_PAUSE
        self._ask()
        if begins:
            self._changed(True)

    def resume(self) -> None:
        """Continue after the loop was cleared."""
        self._is_asked_for = False
        if self._tries:
            self._ask()

    def _ask(self) -> None:
        if not self._is_asked_for:
            self._is_asked_for = True
            self._events.after(self._pause, self._try)

    def _try(self) -> None:
        self._is_asked_for = False
        # A copy: writes that begin to wait meanwhile are tried next time.
        for write in list(self._tries):
            is_done = True
            try:
                is_done = write()
            finally:
                if is_done:
                    self._tries.remove(write)
        if self._tries:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._ask()
        else:
            self._changed(False)
