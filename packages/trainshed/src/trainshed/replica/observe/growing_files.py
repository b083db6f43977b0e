"""Appends to files while a replica runs, and outlasts times when their disk takes nothing.

`Appender` keeps in memory, in order, what could not be written; `DiskRetries` tries again. `SampleFile`
is a file of JSON lines that is thinned to a limited length: the newest entries stay, and an even selection of
the others.
"""

import errno
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from trainshed.replica.system import loop

Entry = dict[str, Any]

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
"""Seconds between two tries. No kernel says when a disk takes more: the only way to know is to write."""


def takes_nothing(error: OSError) -> bool:
    """Whether the error says that the disk is full or read-only, which ends when somebody sees to it, and
    loses nothing; after other errors nobody knows what the file holds."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Appender:
    """Appends to a file, with what does not fit waiting in memory. `handle`: of the file, owned from here
    on."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._waiting = b""

    @property
    def waits(self) -> bool:
        """Whether some data is not in the file yet."""
        return bool(self._waiting)

    @property
    def waiting(self) -> int:
        """Bytes that are not in the file yet."""
        return len(self._waiting)

    def append(self, data: bytes) -> bool:
        """Append data, at once or as soon as there is room (`flush`); return whether everything is in the
        file. Raises OSError for errors other than a full disk."""
        if self._waiting:
            self._waiting += data
            return self.flush()
        self._waiting = self._left_of(data)
        return not self._waiting

    def flush(self) -> bool:
        """Write waiting data, as far as there is room; return whether everything is in the file. Raises
        OSError as `append` does."""
        self._waiting = self._left_of(self._waiting)
        return not self._waiting

    def _left_of(self, data: bytes) -> bytes:
        try:
            while data:
                data = data[os.write(self._handle, data) :]
        except OSError as error:
            if not takes_nothing(error):
                raise
        return data

    def sync(self) -> bool:
        """Sync the file, so that it survives a power cut. Returns False if there is no room for that now
        (network file systems notice late), so that it has to be repeated. Raises OSError."""
        try:
            getattr(os, "fdatasync", os.fsync)(self._handle)
        except OSError as error:
            if not takes_nothing(error):
                raise
            return False
        return True

    def close(self) -> None:
        """Close the file; waiting data is lost."""
        os.close(self._handle)


class DiskRetries:
    """Repeats writes that a disk did not take, soon at first, then each second, until they succeed. `told`:
    called with True when something begins to wait, and with False when nothing waits any more."""

    def __init__(self, events: loop.Loop, changed: "Callable[[bool], None]") -> None:
        self._events = events
        self._told = changed
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
            self._told(True)

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
            self._told(False)


MOST_LINES = 2000

_NEWEST = 500
_SPREAD = 1000


class SampleFile:
    """A file of JSON lines that is thinned when it has too many. It is not synced, because nothing depends on
    lines lost in a power cut. While its disk is full, lines are dropped, except the first that did not
    fit."""

    def __init__(self, path: str) -> None:
        """Touches nothing."""
        self._path = path
        self._file: "Appender | None" = None
        self._lines = 0

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def open(self) -> None:
        """Continue the file of earlier incarnations, even if its end is torn. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        handle = os.open(self._path, flags, 0o600)
        self._file = Appender(handle)
        data = os.pread(handle, os.fstat(handle).st_size, 0)
        self._lines = data.count(b"\n")
        if data and not data.endswith(b"\n"):
            self._file.append(b"\n")

    def append(self, entry: "Entry") -> None:
        """Append an entry. Raises OSError for errors other than a full disk."""
        assert self._file is not None
        if not self._file.flush():
            return
        self._lines += 1
        is_written = self._file.append(json.dumps(entry).encode("utf-8") + b"\n")
        if is_written and self._lines > MOST_LINES:
            self._thin()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _thin(self) -> None:
        with open(self._path, encoding="utf-8") as file:
            entries = read_lines(file.read())
        fresh = self._path + ".new"
        try:
            with open(fresh, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(entry) + "\n" for entry in thinned(entries))
        except OSError as error:
            if not takes_nothing(error):
                raise
            return  # Perhaps next time: the file is somewhat longer until then.
        os.rename(fresh, self._path)
        self.close()
        self.open()


def read_lines(text: str) -> "list[Entry]":
    """Return the entries of the lines, without torn ones."""
    entries: "list[Entry]" = []
    for line in text.split("\n"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)  # pyright: ignore[reportUnknownArgumentType] - JSON
    return entries


def thinned(entries: "Sequence[Entry]") -> "list[Entry]":
    """Return the newest entries, and of the others each start and end, and the last entry of each interval of
    time."""
    older, newest = entries[:-_NEWEST], entries[-_NEWEST:]
    times = [entry["at"] for entry in older if "at" in entry]
    if not times:
        return list(entries)
    # Intervals double, so that the kept entries stay evenly spread when they are thinned again.
    piece = 0
    while (times[-1] - times[0]) >> piece >= _SPREAD:
        piece += 1
    kept: "list[Entry]" = []
    before = -1
    for entry in older:
        if "at" not in entry or entry.get("last"):
            kept.append(entry)
            before = -1
            continue
        number = entry["at"] >> piece
        if number == before:
            kept[-1] = entry
        else:
            kept.append(entry)
        before = number
    return kept + list(newest)
