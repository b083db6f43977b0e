"""Ends programs after a deadline. The agent of a node extends the deadline while its service is reachable
(docs/adr/0061).

The agent stores the deadline in a file, and every shim of the node watches it. So programs end in time even
if the agent hangs or has died, or if the node was suspended.
"""

import mmap
import os
import struct
import time
from collections.abc import Callable

from trainshed.replica.system import kernel, loop

_MOMENT = struct.Struct("=q")
"""Format of the deadline in the file: ns of `kernel.BOOT_CLOCK`."""


class Deadline:
    """The agent's side: creates the file and sets the deadline. Raises OSError."""

    def __init__(self, path: str) -> None:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, _MOMENT.size)
            # Writing to memory cannot block on a hanging disk.
            self._shown = mmap.mmap(handle, _MOMENT.size)
        finally:
            os.close(handle)

    def set(self, seconds: float) -> None:
        """Set the deadline. `seconds`: a time of `kernel.BOOT_CLOCK`."""
        _MOMENT.pack_into(self._shown, 0, int(seconds * 1e9))


class DeadlineWatch:
    """The shim's side: watches the file and calls `expire` once, after the deadline. Raises OSError."""

    def __init__(self, path: str, events: loop.Loop, expire: Callable[[], None]) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._timer = kernel.boot_timer()
        self._loop = events
        self._expire = expire
        events.add(self._timer, self._check)
        self._arm()

    def _arm(self) -> None:
        kernel.set_boot_timer(self._timer, self._moment())

    def _moment(self) -> int:
        moment: int = _MOMENT.unpack(os.pread(self._file, _MOMENT.size, 0))[0]
        return moment

    def _check(self) -> None:
        """Call `expire`, unless the deadline was extended in the meantime."""
        if self._moment() > time.clock_gettime(kernel.BOOT_CLOCK) * 1e9:
            self._arm()
            return
        self._loop.drop(self._timer)
        self._expire()
