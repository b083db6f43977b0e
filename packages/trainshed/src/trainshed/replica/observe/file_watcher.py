"""Detects changes to a file that a program rewrites, and reads consistent snapshots of it. It polls a few
times a second, and less often if polls are slow.

The program may replace the file and its directory with anything. So links are not followed, and only a
regular file without other hard links is read.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable

from trainshed.replica import protocol
from trainshed.replica.observe import masking
from trainshed.replica.supervisor import program
from trainshed.replica.system import loop

_POLL_INTERVAL = 0.25
"""Seconds between two polls."""
_IDLE_FACTOR = 10
"""After each poll, pause for ten times the processor time of the poll."""
_MAX_ATTEMPTS = 20
_MAX_BYTES = 4 << 20
"""If the file is longer, only its last bytes are read."""


class Unreadable(Exception):
    """Raised if the file is not readable in its present form. The message contains the cause and the
    remedy."""


class Changing(Exception):
    """Raised if the file changed during every attempt to read it. The caller should try again a moment
    later."""


class FileWatcher:
    """Detects changes to the file `name` in a program's directory `program.HYPERTUNE`. The file and the
    directory may be created later."""

    def __init__(
        self, name: str, events: loop.Loop, changed: Callable[[], bool], *, mask: masking.Mask | None
    ) -> None:
        self._name = name
        self._events = events
        #: Called when the file may have changed. If it returns false, it is called again at the next poll.
        self._changed = changed
        #: Masks secrets in the file's content; None if there are no secrets.
        self._mask = mask
        self._is_watching = False
        self._seen = (0, 0, 0)

    def start(self) -> None:
        """Start to call `changed` from the event loop."""
        self._is_watching = True
        self._poll()

    def close(self) -> None:
        self._is_watching = False

    def read(self) -> bytes:
        """Return a consistent snapshot of the file's content; b"" if it does not exist. Raises Unreadable,
        Changing."""
        # O_NONBLOCK: do not wait for the writer if the file is a pipe.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            directory = self._open_directory()
            try:
                handle = os.open(self._name, flags, dir_fd=directory)
            finally:
                os.close(directory)
            try:
                data = _content(handle)
            finally:
                os.close(handle)
        except FileNotFoundError:
            return b""
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Unreadable("the file is a symbolic link; write a regular file") from error
            raise Unreadable("opening or reading the file failed (%s)" % error.strerror) from error
        return data if self._mask is None else self._mask.apply(data)

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            directory = self._open_directory()
            try:
                os.unlink(self._name, dir_fd=directory)
            finally:
                os.close(directory)

    def _open_directory(self) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        workspace = os.open(protocol.FILES, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return os.open(program.HYPERTUNE, flags, dir_fd=workspace)
        finally:
            os.close(workspace)

    def _poll(self) -> None:
        if not self._is_watching:
            return
        begin = time.process_time()
        try:
            status = os.lstat(os.path.join(protocol.FILES, program.HYPERTUNE, self._name))
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            seen = (0, 0, 0)
        if seen != self._seen and self._changed():
            self._seen = seen
        taken = time.process_time() - begin
        self._events.after(max(_POLL_INTERVAL, taken * _IDLE_FACTOR), self._poll)


def _content(handle: int) -> bytes:
    for _ in range(_MAX_ATTEMPTS):
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode):
            raise Unreadable("the file is not a regular file; write a regular file")
        if before.st_nlink > 1:
            # The file has a second name, a hard link. The program may have linked a file that it may not
            # read, so this process must not read the file for the program.
            raise Unreadable("the file has a second name (a hard link); write a new file")
        skipped = max(0, before.st_size - _MAX_BYTES)
        data = os.pread(handle, before.st_size - skipped, skipped)
        after = os.fstat(handle)
        # If the file changed during the read, its beginning may be older than a rewrite, and its end newer.
        if len(data) == before.st_size - skipped and _stamp(before) == _stamp(after):
            return data[data.find(b"\n") + 1 :] if skipped else data
    raise Changing


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns
