"""Measures a replica's disk use, and the free space of its disk (spec/machines#disk). Important results
become notes, which are messages to users. The operator decides whether the service stops a replica whose
files exceed its disk.

The files are measured again and again, in short steps. The pause after each step is at least a hundred times
as long as the processor time of the step. So a million files cost no more processor time per second than a
few files, but their measurement takes longer.
"""

import contextlib
import os
import time
from collections.abc import Callable

from trainshed.replica.observe import notes
from trainshed.replica.system import loop, trees

NEARLY_FULL = "disk_nearly_full"
"""Name of a note to users: the replica's files use at least nine tenths of its disk."""
EXCEEDED = "disk_exceeded"
"""Name of a note to users: the replica's files exceed its disk, so the replica is stopped."""
NO_ROOM = "disk_no_room"
"""Name of a note to users: the file system of the replica's files is nearly full, for any reason."""
ROOM_AGAIN = "disk_room_again"
"""Name of a note to users: the file system of the replica's files has free space again."""
LOG_WAITS = "disk_log_waits"
"""Name of a note to users: the program's output cannot be written, so the program blocks at its next
output."""
LOG_WAITS_TEXT = (
    "the disk of its log is full or read-only. The program blocks at its next output until the log is "
    "written; nothing is lost. Free space on this machine, or mount the disk for writing."
)
LOG_GOES_ON = "disk_log_goes_on"
"""Name of a note to users: all output that waited for disk space has been written."""
LOG_GOES_ON_TEXT = "the disk accepts its log again: all of its output is written, and the program continues."

_FIRST = 1.0
"""Seconds from the start to the first measurement; low, to measure short programs too."""
_MOMENT = 0.002
"""Maximum duration of one step of a measurement in seconds. The program's output waits during the step."""
_LAST_MOMENT = 0.02
"""Maximum duration of the last measurement in seconds, enough for thousands of files. The replica's end waits
for it."""
_PROCESSOR_PAUSE_FACTOR = 100
"""The pause after a step is at least this multiple of the step's processor time."""
_ENFORCEMENT_INTERVAL = 1.0
"""Maximum interval in seconds between two measurements if the disk limit is enforced."""
_WAIT_PAUSE_FACTOR = 10
"""The pause after a step is also at least this multiple of the step's duration, which may consist mostly of
waiting for the disk."""
_GB = 1 << 30
"""A gigabyte of disk space in bytes, as the public services define it."""
_LOW = _GB
_LOW_PART = 20
"""Space is low below this fraction of a file system (1/20) or below `_LOW` bytes."""


class Disk:
    """Measures the disk use of one run (incarnation) of a replica, and reports problems."""

    def __init__(
        self,
        files: str,
        *,
        limit: int | None,
        every: float,
        events: loop.Loop,
        note: Callable[[str, str, str], None],
        end: Callable[[], None] | None = None,
        free_space: Callable[[str], tuple[int, int]] | None = None,
    ) -> None:
        """`files`: directory of all files that the program may write. Each measurement opens it."""
        #: Size of the replica's files at the last complete measurement, in bytes; 0 = not measured yet.
        self.used = 0
        #: Directory of all files that the program may write.
        self._files = files
        #: Size of the replica's disk in bytes, from the job; None if it is unknown.
        self._limit = limit
        #: Called once if the replica's files exceed its disk, to stop the replica; None if the replica may
        #: continue.
        self._end = end if limit else None
        #: Seconds between two measurements.
        self._every = min(every, _ENFORCEMENT_INTERVAL) if self._end is not None else every
        self._events = events
        #: Called with the name, severity and text of a note to users.
        self._note = note
        #: Returns the free bytes for programs and the total bytes of a path's file system.
        self._free_space = free_space or _free_space_of
        self._extent: trees.TreeSize | None = None
        self._is_nearly_full = False
        self._is_short = self._is_running = False

    def start(self) -> None:
        """Start measuring. Called after the program's start."""
        self._is_running = True
        self._events.after(min(_FIRST, self._every), self._continue)

    def end(self) -> None:
        """Measure for the last time, as many files as the time limit allows. Called after the program's end,
        while its files still exist."""
        if self._is_running:
            self._is_running = False
            self._drop()
            self._measure(_LAST_MOMENT)
            self._drop()

    def _continue(self) -> None:
        if not self._is_running:
            return
        began, worked = time.monotonic(), time.process_time()
        self._measure(_MOMENT)
        work, waiting = time.process_time() - worked, time.monotonic() - began
        rest = max(work * _PROCESSOR_PAUSE_FACTOR, waiting * _WAIT_PAUSE_FACTOR)
        self._events.after(rest if self._extent else max(self._every, rest), self._continue)

    def _measure(self, seconds: float) -> None:
        """Continue the current measurement for about `seconds`, or start one. `_extent` is the current
        measurement. It is None if all files were measured, or if the directory cannot be opened."""
        if self._extent is None:
            self._check_free_space()
            with contextlib.suppress(OSError):
                self._extent = trees.TreeSize(self._files)
        if self._extent is not None and self._extent.measure(seconds):
            self.used, self._extent = self._extent.found, None
            self._check_size()

    def _drop(self) -> None:
        if self._extent is not None:
            self._extent.close()
            self._extent = None

    def _check_size(self) -> None:
        if self._limit is None:
            return
        used, limit = _gigabytes(self.used), _gigabytes(self._limit)
        advice = "Delete unnecessary files, or request a larger disk (bootDiskSizeGb)."
        if self._end is not None and self._is_running and self.used > self._limit:
            end, self._end = self._end, None
            text = "its files use %s of %s of disk, so the replica is stopped. %s" % (used, limit, advice)
            self._note(EXCEEDED, notes.WARNING, text)
            end()
        elif self._limit * 9 <= self.used * 10 and not self._is_nearly_full:
            self._is_nearly_full = True
            self._note(
                NEARLY_FULL,
                notes.WARNING,
                "its files use %s of the %s of its disk. On the public service, writes fail when it is "
                "full. %s" % (used, limit, advice),
            )

    def _check_free_space(self) -> None:
        try:
            free, total = self._free_space(self._files)
        except OSError:
            return
        low = max(_LOW, total // _LOW_PART)
        if free < low and not self._is_short:
            self._is_short = True
            self._note(
                NO_ROOM,
                notes.WARNING,
                "the disk of the programs' files has %s free of %s. When it is full, writes fail with"
                ' "No space left on device". Free space on this machine.'
                % (_gigabytes(free), _gigabytes(total)),
            )
        elif free >= low + low // 4 and self._is_short:
            # Report free space only well above the limit, to avoid a report for each small change.
            self._is_short = False
            text = "the disk of the programs' files has %s free again." % _gigabytes(free)
            self._note(ROOM_AGAIN, notes.INFO, text)


def _free_space_of(path: str) -> tuple[int, int]:
    system = os.statvfs(path)
    return system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize


def _gigabytes(size: int) -> str:
    """Format a size as `400 MB`, `90.5 GB`, `104 GB`."""
    if size < _GB:
        return "%d MB" % (size >> 20)
    return "%.*f GB" % (1 if size < 99.95 * _GB and size % _GB else 0, size / _GB)
