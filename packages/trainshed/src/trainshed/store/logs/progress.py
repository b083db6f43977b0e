"""Reads a sample of a replica's log, from which the progress of its program is estimated. The size of the
sample is limited, even if the log is long."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from trainshed.core.streams import Segment
from trainshed.store.logs.lines import Stream, read_line
from trainshed.store.logs.segments import Entry, records

FEW: Final = 128 << 10
"""At most this many bytes of new lines are read completely, unless a caller sets another limit."""
_PIECES: Final = 12
"""Number of evenly distributed pieces that are read from a longer log, in addition to its end."""
_PIECE: Final = 16
"""The size in bytes of one piece is the maximum size of the sample divided by this number."""
_END: Final = 4
"""The size in bytes of the end is the maximum size of the sample divided by this number."""
_SMALL: Final = 16 << 10
"""Maximum number of bytes that are read on the event loop's own thread."""


class Sample(Struct, frozen=True):
    """Some lines of a log, oldest first."""

    #: (time in ns since the epoch, printed text) of each line.
    lines: tuple[tuple[int, str], ...]
    #: Offset in bytes at which the next sample starts.
    place: int
    #: The message of the last line, or None if there are no new lines.
    last: str | None = None


_entries: Final = msgspec.json.Decoder(Entry)


def is_small(segments: Sequence[Segment], place: int) -> bool:
    """Return whether a sample from offset `place` can be read in well under a millisecond."""
    return sum(segment.size() for segment in segments) - place <= _SMALL


def sample(segments: Sequence[Segment], place: int, whole: int = FEW) -> Sample:
    """Return lines after an offset. If they have at most `whole` bytes, return all lines. Otherwise, return
    the last lines and pieces that are distributed over the rest of the log. Blocks while it reads."""
    sizes = [segment.size() for segment in segments]
    end, most = sum(sizes), min(whole, FEW)
    spans = [(place, end)]
    if end - place > whole:
        last = end - most // _END
        starts = [place + (last - place) * piece // _PIECES for piece in range(_PIECES)]
        spans = [*((start, start + most // _PIECE) for start in starts), (last, end)]
    entries: list[Entry] = []
    for start, until in spans:
        data = _read(segments, sizes, start, until)
        # A piece from the middle of the log may begin in the middle of a line. Skip the rest of this line.
        skipped = 0 if start == place else data.find(b"\n") + 1
        entries.extend(records(data[skipped:], _entries))
        if ends := data.rfind(b"\n") + 1:
            place = start + ends
        elif until - start >= most // _END:
            # The bytes contain only the beginning of a long line. Continue after them in the next sample.
            place = until
    lines = tuple((entry.t, entry.m) for entry in entries if entry.s is not Stream.SERVICE)
    newest = entries[-1] if entries else None
    return Sample(lines, place, read_line(newest.s, newest.m).text if newest else None)


def _read(segments: Sequence[Segment], sizes: Sequence[int], start: int, until: int) -> bytes:
    """Return the bytes from `start` to `until`, as if all segments were one file."""
    data = b""
    for segment, size in zip(segments, sizes, strict=True):
        if start < size and until > 0:
            begin = max(start, 0)
            data += segment.read(begin, min(until, size) - begin)
        start, until = start - size, until - size
    return data
