"""One replica's log of one attempt on the disk: segment files, and finding a place in them.

Written by the replica's shim, which is why a file may grow while it is read. Files are named
`<number of the first line, 12 digits>.jsonl`; lines are complete with their newline, so that a torn last
line does not count until the rest has come. Nothing is indexed: numbers and times both ascend, so that a
place is found by bisecting bytes, with about ten small reads in a segment of any size.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

_SEGMENT = re.compile(r"(\d{12})\.jsonl")
_BLOCK = 64 * 1024
_PROBE = 4 * 1024


class Entry(msgspec.Struct, frozen=True):
    """One stored line: number, time (nanoseconds), stream letter, text, 1 if the next one continues it."""

    n: int
    t: int
    s: Literal["o", "e", "b"]
    m: str
    p: int = 0


Before = Callable[[Entry], bool]
"""Whether an entry lies before a place that is looked for: true up to some entry, false from there on."""

_decoder = msgspec.json.Decoder(Entry)


def _entry(raw: bytes) -> Entry | None:
    """None for what a crash of the machine may have left: such a line is passed over."""
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


@dataclass(frozen=True, slots=True)
class _Found:
    start: int
    end: int
    entry: Entry


class _Segment:
    """A segment file up to its last complete line at the time of asking; `size` is where that line ends.

    No file stays open between reads: a job may have more replicas than a process may have open files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = self._end_of_last_line()

    def first(self, offset: int, limit: int) -> _Found | None:
        """The first readable entry that begins at or after `offset`, which begins a line, before `limit`."""
        for start, raw in self.lines(offset):
            if start >= limit:
                return None
            if entry := _entry(raw):
                return _Found(start, start + len(raw) + 1, entry)
        return None

    def place(self, before: Before) -> int:
        """Offset of the first entry that is not `before`; `size` if all are."""
        low, high = 0, self.size
        # The first guess is near the end, where those look who follow a log.
        guess = high - _PROBE
        while high - low > _PROBE:
            middle = self._line_start(guess, high)
            found = self.first(middle, high) if middle < high else None
            if found is None:
                # The upper half begins no line of its own: the rest is one long line or nothing.
                break
            if before(found.entry):
                low = found.end
            else:
                high = middle
            guess = (low + high) // 2
        for start, raw in self.lines(low):
            entry = _entry(raw)
            if entry is not None and not before(entry):
                return start
        return self.size

    def lines(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes without the newline) of each complete line from `offset`, which begins one."""
        rest = b""
        start = offset
        position = offset
        block = _PROBE
        while position < self.size:
            data = self._read(min(block, self.size - position), position)
            if not data:
                return
            position += len(data)
            block = _BLOCK
            *complete, rest = (rest + data).split(b"\n")
            for raw in complete:
                yield start, raw
                start += len(raw) + 1

    def lines_backwards(self, end: int) -> Iterator[bytes]:
        """The complete lines before `end`, where one begins, from the last to the first."""
        rest = b""
        position = end
        while position > 0:
            size = min(_BLOCK, position)
            position -= size
            data = self._read(size, position)
            if not data:
                return
            # Each piece but the first begins a line; what is read always ends with a newline.
            first, *complete = (data + rest).split(b"\n")
            yield from (raw for raw in reversed(complete) if raw)
            rest = first + b"\n"
        if rest:
            yield rest[:-1]

    def _line_start(self, offset: int, limit: int) -> int:
        """Where the first line begins that starts at or after `offset`; `limit` if none does before it."""
        position = max(offset - 1, 0)
        while position < limit:
            data = self._read(min(_PROBE, limit - position), position)
            if not data:
                return limit
            newline = data.find(b"\n")
            if newline >= 0:
                return min(position + newline + 1, limit)
            position += len(data)
        return limit

    def _end_of_last_line(self) -> int:
        try:
            position = self._path.stat().st_size
        except FileNotFoundError:
            return 0
        while position > 0:
            start = max(position - _PROBE, 0)
            newline = self._read(position - start, start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            position = start
        return 0

    def _read(self, size: int, offset: int) -> bytes:
        """Empty if the file was removed meanwhile, as the logs of a deleted job are."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)


class ReplicaLog:
    """The log of one replica in one attempt, in `directory`. Blocks; keeps nothing between calls."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def forwards(self, before: Before) -> Iterator[Entry]:
        """Every entry that is not `before` the place, ascending."""
        paths = self._segments()
        for number in range(max(_segment_of(paths, before), 0), len(paths)):
            segment = _Segment(paths[number])
            for _, raw in segment.lines(segment.place(before)):
                if entry := _entry(raw):
                    yield entry

    def backwards(self, before: Before) -> Iterator[Entry]:
        """Every entry that is `before` the place, descending."""
        paths = self._segments()
        for number in range(_segment_of(paths, before), -1, -1):
            segment = _Segment(paths[number])
            for raw in segment.lines_backwards(segment.place(before)):
                if entry := _entry(raw):
                    yield entry

    def _segments(self) -> list[Path]:
        try:
            names = sorted(path.name for path in self._directory.iterdir())
        except FileNotFoundError:
            return []
        return [self._directory / name for name in names if _SEGMENT.fullmatch(name)]


def _segment_of(paths: list[Path], before: Before) -> int:
    """The segment in which the place lies: the last one whose first entry is `before` it, else the first
    one; -1 if there is none."""
    if not paths:
        return -1
    low, high = 0, len(paths)
    while high - low > 1:
        middle = (low + high) // 2
        segment = _Segment(paths[middle])
        found = segment.first(0, segment.size)
        if found is not None and before(found.entry):
            low = middle
        else:
            high = middle
    return low
