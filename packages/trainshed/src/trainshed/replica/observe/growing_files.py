"""Appends to files while a replica runs, even if their disk is full for some time. `Appender` buffers
unwritten data in memory, in order. `DiskRetries` repeats failed writes."""

import errno
import os
from collections.abc import Callable

from trainshed.replica.system import loop

_FIRST_PAUSE = 0.05
_MAX_PAUSE = 1.0
"""Maximum number of seconds between two attempts to write. The kernel does not report that space is free
again, so only a new attempt can detect it."""


def is_unwritable(error: OSError) -> bool:
    """Whether `error` shows that the disk is full or read-only. An operator can fix that, and no data is
    lost. After other errors, the content of the file is unknown."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


_READ_BACK = 1 << 20
"""Number of bytes that `reopen` reads from the end of a file; more than any two lines."""


class Appender:
    """Appends to a file of lines, and buffers in memory any data for which the disk has no space. `handle`:
    the file's descriptor, owned by this object. `size`: the file's bytes, including buffered ones."""

    def __init__(self, handle: int, size: int) -> None:
        self._handle = handle
        self._waiting = b""
        self.size = size

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def append(self, data: bytes) -> bool:
        """Append data, either immediately or when space is free (`flush`). Return whether the file contains
        all data. Raises OSError for errors other than a full disk."""
        self._waiting += data
        self.size += len(data)
        return self.flush()

    def flush(self) -> bool:
        """Write as much buffered data as possible. Return whether the file contains all data. Raises OSError
        like `append`."""
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._handle, self._waiting) :]
        except OSError as error:
            if not is_unwritable(error):
                raise
        return not self._waiting

    def sync(self) -> bool:
        """Sync the file to the disk. Returns False if the disk is full, which network file systems detect
        late; then call it again. Raises OSError for other errors."""
        try:
            os.fdatasync(self._handle)
        except OSError as error:
            if not is_unwritable(error):
                raise
            return False
        return True

    def close(self) -> None:
        """Close the file; buffered data is lost."""
        os.close(self._handle)


def reopen(path: str) -> tuple[Appender, list[bytes]]:
    """Open a file of lines to append to it; return it with its last lines. The first of these lines may be
    incomplete.

    The file need not exist. An incomplete last line, which no reader has used, is removed. `journal.append`
    explains why syncing a new file also makes its name durable. Raises OSError.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    # Callers need only the last lines, and a restart must not wait until megabytes are read.
    skipped = max(0, os.fstat(handle).st_size - _READ_BACK)
    data = os.pread(handle, _READ_BACK, skipped)
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.ftruncate(handle, skipped + end)
    return Appender(handle, skipped + end), data[:end].splitlines()


class DiskRetries:
    """Repeats writes to a full disk until they succeed, at first after a short pause and then each second.
    `changed`: called with True when the first write starts to wait, and with False when no write waits any
    longer."""

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
        """Call `write` repeatedly until it returns True or raises. Does nothing if `write` is waiting
        already."""
        if write in self._tries:
            return
        begins = not self._tries
        self._tries.append(write)
        if begins:
            self._pause = _FIRST_PAUSE
        self._schedule()
        if begins:
            self._changed(True)

    def resume(self) -> None:
        """Schedule the next attempt again, after `Loop.clear` has removed it from the event loop."""
        self._is_asked_for = False
        if self._tries:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_asked_for:
            self._is_asked_for = True
            self._events.after(self._pause, self._try)

    def _try(self) -> None:
        self._is_asked_for = False
        # Iterate over a copy, because a call may add writes. The next round tries these writes.
        for write in list(self._tries):
            is_done = True
            try:
                is_done = write()
            finally:
                if is_done:
                    self._tries.remove(write)
        if self._tries:
            self._pause = min(2 * self._pause, _MAX_PAUSE)
            self._schedule()
        else:
            self._changed(False)
