"""Keeps what was written down of a replica at a bearable length (`usage`, `reduction`): the newest looks, and of the others
as many as are of use. Runs on Python 3.6.
"""

import json
import os

from trainshed.replica import appending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence

    Entry = dict[str, Any]
else:
    Entry = dict

MOST_LINES = 2000

_NEWEST = 500
_SPREAD = 1000


class Sheet:
    """A file of JSON lines that is thinned when it has too many. Not synced: what a power cut takes decides nothing. While its
    disk is full lines are left out, but for the first that did not fit."""

    __slots__ = ("_file", "_lines", "_path")

    def __init__(self, path: str) -> None:
        """Touches nothing."""
        self._path = path
        self._file: "appending.Appender | None" = None
        self._lines = 0

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def open(self) -> None:
        """Go on with what earlier incarnations wrote down, after a torn end as well. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        handle = os.open(self._path, flags, 0o600)
        self._file = appending.Appender(handle)
        data = os.pread(handle, os.fstat(handle).st_size, 0)
        self._lines = data.count(b"\n")
        if data and not data.endswith(b"\n"):
            self._file.append(b"\n")

    def append(self, entry: "Entry") -> None:
        """Raises OSError: it is no matter of room."""
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
            if not appending.is_full(error):
                raise
            return  # Next time, perhaps: it is somewhat longer until then.
        os.rename(fresh, self._path)
        self.close()
        self.open()


def read_lines(text: str) -> "list[Entry]":
    """What the lines say; those that are torn say nothing."""
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
    """The newest ones, and of the others as many as are of use: each start and end, and the last look of each piece of
    time."""
    older, newest = entries[:-_NEWEST], entries[-_NEWEST:]
    times = [entry["at"] for entry in older if "at" in entry]
    if not times:
        return list(entries)
    # Powers of two: the pieces of next time are pairs of these, and what was kept is evenly spread still.
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
