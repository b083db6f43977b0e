"""Reads one replica's log of one attempt: its entries, and the place of one among them.

The replica's shim writes it (`trainshed.replica.observe.segments`), so a segment may grow while it is read. A
line is complete with its newline, so that a torn last line does not count until its rest has come. There is
no index: numbers and times both ascend, so a place is found by bisecting bytes, with about ten small reads in
a segment of any size.
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
"""Bytes that are read at a time: few, because whoever reads slowly holds as many of every replica."""


class Entry(msgspec.Struct, frozen=True):
    """One stored line: number, time (ns since the epoch), stream letter, text, 1 if the next one continues
    it."""

    n: int
    t: int
    s: Stream
    m: str
    p: int = 0


Before = Callable[[Entry], bool]
"""Whether an entry lies before the place that is looked for: true up to some entry, false from there on."""

_decoder = msgspec.json.Decoder(Entry)
_encode = msgspec.json.Encoder().encode


def decoded(raw: bytes) -> Entry | None:
    """Return the entry of a line; None for what a crash of the machine may have left, which is skipped."""
    try:
        return _decoder.decode(raw)
    except (ValueError, RecursionError):
        return None


def decoded_lines(data: bytes) -> list[Entry]:
    """Return the entries of whole lines, as `decoded` does."""
    try:
        return _decoder.decode_lines(data)
    except (ValueError, RecursionError):
        return [entry for raw in data.split(b"\n") if (entry := decoded(raw)) is not None]


_ORDINARY = re.compile(
    rb'\{"n":(?<![^\n]\{"n":)([0-9]++),"t":([0-9]{19}),"s":"o",'
    rb'"m":("(?:[a-z]|[A-Z](?![A-Z0-9\x80-\xff])|[0-9](?=[^:\n]*+$)|(?="))'
    rb'[^"\\\x00-\x1f]*+(?:\\[^u][^"\\\x00-\x1f]*+)*+")\}()$',
    re.MULTILINE,
)
"""A whole line of standard output that begins with none of the styles of levels (`lines.begins_plainly`),
without control characters, which may be a terminal's colors."""
_MARKS = (b"level=", b"lvl=", b"severity=")
"""One of these, or NCCL, is in each line that begins plainly and has a level."""


def shown_lines(block: bytes) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """Return number, time (ns since the epoch, 19 digits), text (JSON) and severity (b"" is INFO) of the
    readable lines of a block, as `read_line` does. Ordinary lines are not decoded, because there are
    millions."""
    has_marks = b"NCCL " in block or (b"=" in block and any(mark in block for mark in _MARKS))
    shown: list[tuple[bytes, bytes, bytes, bytes]] = []
    if not has_marks and block.decode(errors="ignore").encode() == block:
        shown = _ORDINARY.findall(block)
    if len(shown) <= block.count(b"\n"):
        for entry in decoded_lines(_ORDINARY.sub(b"", block) if shown else block):
            line = read_line(entry.s, entry.m)
            text, severity = _encode(line.text), line.severity.encode()
            shown.append((b"%d" % entry.n, b"%019d" % entry.t, text, severity))
        shown.sort(key=itemgetter(1))
    return shown


class _Segment:
    """A segment up to its last complete line at the time of creation; `size` is where that line ends."""

    def __init__(self, stored: Segment) -> None:
        self._stored = stored
        self.size = self._end_of_last_line()

    def first(self, offset: int, limit: int) -> tuple[Entry, int] | None:
        """Return the first readable entry that begins at or after `offset`, where a line begins, and before
        `limit`, and where its line ends."""
        for start, raw in self.lines(offset):
            if start >= limit:
                return None
            if entry := decoded(raw):
                return entry, start + len(raw) + 1
        return None

    def place(self, before: Before) -> int:
        """Return the offset of the first entry that is not `before`; `size` if all are."""
        low, high = 0, self.size
        # The first guess is near the end, where followers of a log look.
        guess = high - _BLOCK
        while high - low > _BLOCK:
            middle = self._line_start(guess, high)
            place = self.first(middle, high) if middle < high else None
            if place is None:
                # No line begins in the upper half: the rest is one long line or nothing.
                break
            entry, end = place
            if before(entry):
                low = end
            else:
                high = middle
            guess = (low + high) // 2
        for start, raw in self.lines(low):
            entry = decoded(raw)
            if entry is not None and not before(entry):
                return start
        return self.size

    def lines(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes without the newline) of each complete line from `offset` on, where a line
        begins."""
        for block in self.blocks(offset):
            for raw in block.split(b"\n"):
                yield offset, raw
                offset += len(raw) + 1

    def blocks(self, offset: int) -> Iterator[bytes]:
        """Yield the complete lines from `offset` on, where one begins, several at a time, without the last
        newline of each block."""
        rest = b""
        while offset < self.size and (data := self._read(min(_BLOCK, self.size - offset), offset)):
            offset += len(data)
            complete, newline, rest = (rest + data).rpartition(b"\n")
            if newline:
                yield complete

    def lines_backwards(self, end: int) -> Iterator[bytes]:
        """Yield the complete lines before `end`, where a line begins, from the last to the first."""
        rest = b""
        position = end
        while position > 0:
            size = min(_BLOCK, position)
            position -= size
            data = self._read(size, position)
            if not data:
                return
            # Each piece but the first begins with a line; what is read always ends with a newline.
            first, *complete = (data + rest).split(b"\n")
            yield from (raw for raw in reversed(complete) if raw)
            rest = first + b"\n"
        if rest:
            yield rest[:-1]

    def _line_start(self, offset: int, limit: int) -> int:
        """Return where the first line begins that starts at or after `offset`; `limit` if none does before
        it."""
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
        """Return bytes of the segment; none if it was removed, as the logs of a deleted job are."""
        return self._stored.read(offset, size)


class ReplicaLog:
    """The log of one replica in one attempt. Blocks; keeps nothing between calls."""

    def __init__(self, streams: Streams, source: StreamSource) -> None:
        self._streams = streams
        self._source = source

    def blocks(self, before: Before) -> Iterator[bytes]:
        """Yield the lines that are not `before` the place, several at a time, without the last newline of
        each block."""
        stored = self._segments()
        for number in range(max(_segment_of(stored, before), 0), len(stored)):
            segment = _Segment(stored[number])
            yield from segment.blocks(segment.place(before))

    def forwards(self, before: Before) -> Iterator[Entry]:
        """Return every entry that is not `before` the place, ascending."""
        return chain.from_iterable(map(decoded_lines, self.blocks(before)))

    def backwards(self, before: Before) -> Iterator[Entry]:
        """Yield every entry that is `before` the place, descending."""
        stored = self._segments()
        for number in range(_segment_of(stored, before), -1, -1):
            segment = _Segment(stored[number])
            for raw in segment.lines_backwards(segment.place(before)):
                if entry := decoded(raw):
                    yield entry

    def _segments(self) -> Sequence[Segment]:
        return self._streams.open(self._source, StreamKind.LOG)


def _segment_of(stored: Sequence[Segment], before: Before) -> int:
    """Return the number of the segment that contains the place: the last one whose first entry is `before`
    it, otherwise the first one; -1 if there is no segment."""
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
    """Yield the records of the complete lines in `data`; unreadable ones, which a crash of the machine may
    leave, are skipped."""
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
    """Yield the present contents of a job's streams of a kind, one attempt after the other.
    `attempt`, `replica`: limit the result to one."""
    for streams in held:
        for source in sorted(streams.sources(job_uid), key=lambda source: source.attempt):
            if (
                attempt in (None, source.attempt)
                and replica in (None, source.replica)
                and (parts := streams.open(source, kind))
            ):
                yield source, b"".join(part.read(0, part.size()) for part in parts)
