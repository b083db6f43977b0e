"""Reads one replica's log of one attempt, and finds the position of an entry.

The replica's shim writes the log (`trainshed.replica.observe.segments`), so a segment may grow while it is
read. The last line is ignored until its newline has been written. Logs have no index. Numbers and times
ascend, so a binary search over the bytes can find a position. It needs about ten small reads in a segment of
any size.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import TypeVar

import msgspec

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import Segment, StreamKind, Streams, StreamSource
from trainshed.store.logs.lines import Stream, read_line

Record = TypeVar("Record")

_BLOCK = 8 * 1024
"""Bytes per read. The number is small because one block of every replica is in memory while a reader is slow.
"""


class Entry(msgspec.Struct, frozen=True):
    """One stored line: number, time (ns since the epoch), letter of the stream, text. `p` is 1 if the next
    entry continues the line."""

    n: int
    t: int
    s: Stream
    m: str
    p: int = 0


Before = Callable[[Entry], bool]
"""Returns whether an entry is before the position that a search must find. It returns true for all entries
before that position, and false for all others."""

_decoder = msgspec.json.Decoder(Entry)
_encode = msgspec.json.Encoder().encode


def decode_entry(raw: bytes) -> Entry | None:
    """Return the entry of a line, or None if a crash of the machine has damaged the line."""
    try:
        return _decoder.decode(raw)
    except (ValueError, RecursionError):
        return None


def decode_lines(data: bytes) -> list[Entry]:
    """Return the entries of complete lines. Damaged lines are skipped."""
    try:
        return _decoder.decode_lines(data)
    except (ValueError, RecursionError):
        return [entry for raw in data.split(b"\n") if (entry := decode_entry(raw)) is not None]


_ORDINARY = re.compile(
    rb'\{"n":(?<![^\n]\{"n":)([0-9]++),"t":([0-9]{19}),"s":"o",'
    rb'"m":("(?:[a-z]|[A-Z](?![A-Z0-9\x80-\xff])|[0-9](?=[^:\n]*+$)|(?="))'
    rb'[^"\\\x00-\x1f]*+(?:\\[^u][^"\\\x00-\x1f]*+)*+")\}()$',
    re.MULTILINE,
)
"""Matches a whole line of standard output that has no level at its beginning (`lines.begins_plainly`) and no
control characters. Control characters may be a terminal's colors."""
_MARKS = (b"level=", b"lvl=", b"severity=")
"""A line that has no level, bracket or time at its beginning can still have a level. It then contains NCCL or
one of these texts."""


def display_lines(block: bytes) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """Return the readable lines of a block as (number, time, text, severity). The time is in ns since the
    epoch, with 19 digits. The text is a JSON string. A severity of b"" means INFO. The result is the same as
    that of `read_line`. Ordinary lines are not decoded, because logs may have millions of lines."""
    has_marks = b"NCCL " in block or (b"=" in block and any(mark in block for mark in _MARKS))
    shown: list[tuple[bytes, bytes, bytes, bytes]] = []
    if not has_marks and block.decode(errors="ignore").encode() == block:
        shown = _ORDINARY.findall(block)
    if len(shown) <= block.count(b"\n"):
        for entry in decode_lines(_ORDINARY.sub(b"", block) if shown else block):
            line = read_line(entry.s, entry.m)
            text, severity = _encode(line.text), line.severity.encode()
            shown.append((b"%d" % entry.n, b"%019d" % entry.t, text, severity))
        shown.sort(key=itemgetter(1))
    return shown


class _Segment:
    """A segment, up to the end of its last complete line at the time when this object was created. `size` is
    the offset of that end."""

    def __init__(self, stored: Segment) -> None:
        self._stored = stored
        self.size = self._end_of_last_line()

    def first(self, offset: int, limit: int) -> tuple[Entry, int] | None:
        """Return the first readable entry whose line begins at or after `offset` and before `limit`, and the
        offset of the end of its line. `offset` must be the beginning of a line."""
        for start, raw in self.lines(offset):
            if start >= limit:
                return None
            if entry := decode_entry(raw):
                return entry, start + len(raw) + 1
        return None

    def place(self, before: Before) -> int:
        """Return the offset of the first entry for which `before` is false. If `before` is true for all
        entries, return `size`."""
        low, high = 0, self.size
        # The first guess is near the end, where followers of a log usually read.
        guess = high - _BLOCK
        while high - low > _BLOCK:
            middle = self._line_start(guess, high)
            place = self.first(middle, high) if middle < high else None
            if place is None:
                # No readable line begins in the upper half. Stop halving, and search the remaining lines one
                # by one.
                break
            entry, end = place
            if before(entry):
                low = end
            else:
                high = middle
            guess = (low + high) // 2
        for start, raw in self.lines(low):
            entry = decode_entry(raw)
            if entry is not None and not before(entry):
                return start
        return self.size

    def lines(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes without the newline) of each complete line from `offset` on. `offset` must be
        the beginning of a line."""
        for block in self.blocks(offset):
            for raw in block.split(b"\n"):
                yield offset, raw
                offset += len(raw) + 1

    def blocks(self, offset: int) -> Iterator[bytes]:
        """Yield blocks of complete lines from `offset` on. Each block lacks its last newline. `offset` must
        be the beginning of a line."""
        rest = b""
        while offset < self.size and (data := self._read(min(_BLOCK, self.size - offset), offset)):
            offset += len(data)
            complete, newline, rest = (rest + data).rpartition(b"\n")
            if newline:
                yield complete

    def lines_backwards(self, end: int) -> Iterator[bytes]:
        """Yield the complete lines before the offset `end`, from the last to the first. `end` must be the
        beginning of a line."""
        rest = b""
        position = end
        while position > 0:
            size = min(_BLOCK, position)
            position -= size
            data = self._read(size, position)
            if not data:
                return
            # Each element except the first is a complete line, because the data always end with a newline.
            first, *complete = (data + rest).split(b"\n")
            yield from (raw for raw in reversed(complete) if raw)
            rest = first + b"\n"
        if rest:
            yield rest[:-1]

    def _line_start(self, offset: int, limit: int) -> int:
        """Return the offset of the first line that begins at or after `offset` and before `limit`. Return
        `limit` if there is none."""
        position = max(offset - 1, 0)
        while position < limit:
            data = self._read(min(_BLOCK, limit - position), position)
            if not data:
                return limit
            newline = data.find(b"\n")
            if newline >= 0:
                return min(position + newline + 1, limit)
            position += len(data)
        return limit

    def _end_of_last_line(self) -> int:
        position = self._stored.size()
        while position > 0:
            start = max(position - _BLOCK, 0)
            newline = self._read(position - start, start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            position = start
        return 0

    def _read(self, size: int, offset: int) -> bytes:
        """Return bytes of the segment, or b"" if the segment was deleted together with its job."""
        return self._stored.read(offset, size)


class ReplicaLog:
    """The log of one replica in one attempt. Its methods block. The object keeps no state between calls."""

    def __init__(self, streams: Streams, source: StreamSource) -> None:
        self._streams = streams
        self._source = source

    def blocks(self, before: Before) -> Iterator[bytes]:
        """Yield blocks of the lines for which `before` is false. Each block lacks its last newline."""
        stored = self._segments()
        for number in range(max(_segment_of(stored, before), 0), len(stored)):
            segment = _Segment(stored[number])
            yield from segment.blocks(segment.place(before))

    def forwards(self, before: Before) -> Iterator[Entry]:
        """Yield the entries for which `before` is false, ascending."""
        return chain.from_iterable(map(decode_lines, self.blocks(before)))

    def backwards(self, before: Before) -> Iterator[Entry]:
        """Yield the entries for which `before` is true, descending."""
        stored = self._segments()
        for number in range(_segment_of(stored, before), -1, -1):
            segment = _Segment(stored[number])
            for raw in segment.lines_backwards(segment.place(before)):
                if entry := decode_entry(raw):
                    yield entry

    def _segments(self) -> Sequence[Segment]:
        return self._streams.open(self._source, StreamKind.LOG)


def _segment_of(stored: Sequence[Segment], before: Before) -> int:
    """Return the index of the segment that contains the searched position. This is the last segment whose
    first entry is `before` the position, or else the first segment. Return -1 if there are no segments."""
    if not stored:
        return -1
    low, high = 0, len(stored)
    while high - low > 1:
        middle = (low + high) // 2
        segment = _Segment(stored[middle])
        first = segment.first(0, segment.size)
        if first is not None and before(first[0]):
            low = middle
        else:
            high = middle
    return low


def records(data: bytes, decoder: msgspec.json.Decoder[Record]) -> Iterator[Record]:
    """Yield the records of the complete lines in `data`. Skip lines that a crash of the machine has
    damaged."""
    for line in data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]:
        try:
            yield decoder.decode(line)
        except (ValueError, RecursionError):
            continue


def contents(
    held: Iterable[Streams],
    job_uid: JobUid,
    kind: StreamKind,
    attempt: int | None = None,
    replica: ReplicaId | None = None,
) -> Iterator[tuple[StreamSource, bytes]]:
    """Yield the current contents of a job's streams of one kind, ordered by attempt. `attempt`, `replica`:
    yield only the streams of this attempt or replica."""
    for streams in held:
        for source in sorted(streams.sources(job_uid), key=lambda source: source.attempt):
            if (
                attempt in (None, source.attempt)
                and replica in (None, source.replica)
                and (parts := streams.open(source, kind))
            ):
                yield source, b"".join(part.read(0, part.size()) for part in parts)
