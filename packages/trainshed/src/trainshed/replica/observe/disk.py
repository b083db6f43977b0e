"""Watches a replica's use of its disk, and whether there is room for more (spec/machines#disk).

The files are measured now and then, and what people should know becomes a note. The operator decides whether
a replica is ended whose files take more than the disk that its job asked for. Files are measured for a moment
at a time, followed by a pause a hundred times as long, so that a million files take no more of a processor
than a few, but longer.
"""

import contextlib
import os
import time
from collections.abc import Callable

from trainshed.replica.observe import notes
from trainshed.replica.system import loop, trees

NEARLY_FULL = "disk_nearly_full"
"""Name of the note that its files take nine tenths of the disk that was asked for, or more."""
EXCEEDED = "disk_exceeded"
"""Name of the note that its files take more than that disk, for which the replica is ended."""
NO_ROOM = "disk_no_room"
"""Name of the note that the file system on which its files lie is nearly full, whoever has filled it."""
ROOM_AGAIN = "disk_room_again"
"""Name of the note that this file system has space again."""
LOG_WAITS = "disk_log_waits"
"""Name of the note that the program's output cannot be written, so that the program waits before it prints
more."""
LOG_WAITS_TEXT = (
    "the disk that its log is written to is full or read-only: the program waits with its next output until "
    "it is written down, and nothing is lost. Make room on this machine, or mount the disk for writing."
)
LOG_GOES_ON = "disk_log_goes_on"
"""Name of the note that all output was written."""
LOG_GOES_ON_TEXT = (
    "the disk takes its log again: all that it has said is written down, and it goes on."
)

_FIRST = 1.0
"""Seconds from the start to the first measurement, early enough for short programs to be measured."""
_MOMENT = 0.002
"""Seconds of one measurement, in which the program's output has to wait."""
_LAST_MOMENT = 0.02
"""Seconds of the last measurement, for which the program's end waits: enough for some thousands of files."""
_WORK_SHARE = 100
"""The pause after a measurement is this many times its processor time ..."""
_ENFORCED_EVERY = 1.0
"""Longest interval in seconds between two measurements if the replica is ended for its files."""
_WAIT_SHARE = 10
"""... and at least this many times its duration, most of which may have been waiting for the disk."""
_GB = 1 << 30
"""A gigabyte of a disk, as the public services count it."""
_LOW = _GB
_LOW_PART = 20
"""Space is short below this part of a file system, or below `_LOW` bytes."""


class Disk:
    """Watches the disk of one incarnation."""

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
        """Opens no file."""
        #: Bytes that its files took at the last complete measurement; 0 = there was none yet.
        self.used = 0
        #: Directory of everything that the replica may write.
        self._files = files
        #: Bytes of disk that its job asked for; None = not known.
        self._limit = limit
        #: Called once, if its files take more than that; None = the replica is not ended.
        self._end = end if limit else None
        #: Seconds between two measurements.
        self._every = min(every, _ENFORCED_EVERY) if self._end is not None else every
        self._events = events
        #: Called with (name, severity, text).
        self._note = note
        #: Returns (free for programs, in all) bytes of a path's file system.
        self._free_space = free_space or _free_space_of
        self._extent: trees.TreeSize | None = None
        self._is_nearly_full = False
        self._is_short = self._is_running = False

    def begin(self) -> None:
        """Measure from now on, because the program runs."""
        self._is_running = True
        self._events.after(min(_FIRST, self._every), self._go_on)

    def end(self) -> None:
        """Measure for the last time, as many files as a moment allows. The program has ended, but its files
        are still there."""
        if self._is_running:
            self._is_running = False
            self._drop()
            self._measure(_LAST_MOMENT)
            self._drop()

    def _go_on(self) -> None:
        if not self._is_running:
            return
        began, worked = time.monotonic(), time.process_time()
        self._measure(_MOMENT)
        work, waiting = time.process_time() - worked, time.monotonic() - began
        rest = max(work * _WORK_SHARE, waiting * _WAIT_SHARE)
        self._events.after(rest if self._extent else max(self._every, rest), self._go_on)

    def _measure(self, seconds: float) -> None:
        """Measure for about so long. `_extent` is None once all files were measured, or if they cannot be."""
        if self._extent is None:
            self._see_room()
            with contextlib.suppress(OSError):
                self._extent = trees.TreeSize(self._files)
        if self._extent is not None and self._extent.go_on(seconds):
            self.used, self._extent = self._extent.found, None
            self._see_size()

    def _drop(self) -> None:
        if self._extent is not None:
            self._extent.close()
            self._extent = None

    def _see_size(self) -> None:
        if self._limit is None:
            return
        used, limit = _gigabytes(self.used), _gigabytes(self._limit)
        advice = "Delete what is not needed, or ask for a larger one (bootDiskSizeGb)."
        if self._end is not None and self._is_running and self.used > self._limit:
            end, self._end = self._end, None
            text = "its files take %s, and its disk has %s: it is ended. %s" % (used, limit, advice)
            self._note(EXCEEDED, notes.WARNING, text)
            end()
        elif self._limit * 9 <= self.used * 10 and not self._is_nearly_full:
            self._is_nearly_full = True
            self._note(
                NEARLY_FULL,
                notes.WARNING,
                "its files take %s of the %s of its disk: on the public service writes fail once it is "
                "full. %s" % (used, limit, advice),
            )

    def _see_room(self) -> None:
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
                "the disk that programs write to has %s free of %s: once it is full they fail with"
                ' "No space left on device". Make room on this machine.'
                % (_gigabytes(free), _gigabytes(total)),
            )
        elif free >= low + low // 4 and self._is_short:
            # Well above the limit, so that crossing it back and forth is not reported each time.
            self._is_short = False
            text = "the disk that programs write to has %s free again." % _gigabytes(free)
            self._note(ROOM_AGAIN, notes.INFO, text)


def _free_space_of(path: str) -> tuple[int, int]:
    system = os.statvfs(path)
    return system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize


def _gigabytes(size: int) -> str:
    """Write a size as `400 MB`, `90.5 GB`, `104 GB`."""
    if size < _GB:
        return "%d MB" % (size >> 20)
    return "%.*f GB" % (1 if size < 99.95 * _GB and size % _GB else 0, size / _GB)
