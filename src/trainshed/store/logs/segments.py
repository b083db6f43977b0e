"""One replica's log of one attempt: entries, and finding a place among them.

Written by the replica's shim (`trainshed.replica.observe.segments`), which is why a segment may grow while it
is read. Lines are complete with their newline, so that a torn last line does not count until the rest has
come. Nothing is indexed: numbers and times both ascend, so that a place is found by bisecting bytes, with
about ten small reads in a segment of any size.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import Segment, StreamKind, Streams, StreamSource

Record = TypeVar("Record")

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


def decoded(raw: bytes) -> Entry | None:
    """None for what a crash of the machine may have left: such a line is passed over."""
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class _Found(Struct, frozen=True):
    start: int
    end: int
    entry: Entry


class _Segment:
    """A segment up to its last complete line at the time of asking; `size` is where that line ends."""

    def __init__(self, stored: Segment) -> None:
        self._stored = stored
        self.size = self._end_of_last_line()

    def first(self, offset: int, limit: int) -> _Found | None:
        """The first readable entry that begins at or after `offset`, which begins a line, before `limit`."""
        for start, raw in self.lines(offset):
            if start >= limit:
                return None
            if entry := decoded(raw):
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
            entry = decoded(raw)
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
        position = self._stored.size()
        while position > 0:
            start = max(position - _PROBE, 0)
            newline = self._read(position - start, start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            position = start
        return 0

    def _read(self, size: int, offset: int) -> bytes:
        """Empty if the segment was removed meanwhile, as the logs of a deleted job are."""
        return self._stored.read(offset, size)


class ReplicaLog:
    """The log of one replica in one attempt. Blocks; keeps nothing between calls."""

    def __init__(self, streams: Streams, source: StreamSource) -> None:
        self._streams = streams
        self._source = source

    def forwards(self, before: Before) -> Iterator[Entry]:
        """Every entry that is not `before` the place, ascending."""
        stored = self._segments()
        for number in range(max(_segment_of(stored, before), 0), len(stored)):
            segment = _Segment(stored[number])
            for _, raw in segment.lines(segment.place(before)):
                if entry := decoded(raw):
                    yield entry

    def backwards(self, before: Before) -> Iterator[Entry]:
        """Every entry that is `before` the place, descending."""
        stored = self._segments()
        for number in range(_segment_of(stored, before), -1, -1):
            segment = _Segment(stored[number])
            for raw in segment.lines_backwards(segment.place(before)):
                if entry := decoded(raw):
                    yield entry

    def _segments(self) -> Sequence[Segment]:
        return self._streams.open(self._source, StreamKind.LOG)


def place_after(stored: Sequence[Segment], seen: int) -> tuple[int, int]:
    """Where the line stands that follows the one with the number `seen` (-1: the first one): the segment's
    number, and the offset in it. `stored` is not empty."""
    if seen < 0:
        return 0, 0

    def before(entry: Entry) -> bool:
        return entry.n <= seen

    number = _segment_of(stored, before)
    return number, _Segment(stored[number]).place(before)


def _segment_of(stored: Sequence[Segment], before: Before) -> int:
    """The segment in which the place lies: the last one whose first entry is `before` it, else the first
    one; -1 if there is none."""
    if not stored:
        return -1
    low, high = 0, len(stored)
    while high - low > 1:
        middle = (low + high) // 2
        segment = _Segment(stored[middle])
        found = segment.first(0, segment.size)
        if found is not None and before(found.entry):
            low = middle
        else:
            high = middle
    return low


def records(data: bytes, decoder: msgspec.json.Decoder[Record]) -> Iterator[Record]:
    """Of the lines in `data` that are whole; those that cannot be read are passed over, as a crash of the
    machine may leave some."""
    for line in data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]:
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue


def contents(
    held: Iterable[Streams], job_uid: JobUid, attempt: int, kind: StreamKind
) -> Iterator[tuple[ReplicaId, bytes]]:
    """Of each replica of an attempt that has a stream of this kind, all that it holds now."""
    for streams in held:
        for source in streams.sources(job_uid):
            if source.attempt == attempt and (parts := streams.open(source, kind)):
                yield source.replica, b"".join(part.read(0, part.size()) for part in parts)
