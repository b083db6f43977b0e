"""Reads a sample of a replica's log to estimate the progress of its program. The size of the sample is
limited, even for a long log."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from trainshed.core.streams import Segment
from trainshed.store.logs.lines import Stream, read_line
from trainshed.store.logs.segments import Entry, records

FEW: Final = 128 << 10
"""Maximum bytes of new lines that are read completely, unless a caller requests more."""
_PIECES: Final = 12
"""Number of evenly distributed pieces that are read of a longer log, in addition to its end."""
_PIECE: Final = 16
"""The size of one piece is the log's size divided by this number."""
_END: Final = 4
"""The size of the end is the log's size divided by this number."""
_SMALL: Final = 16 << 10
"""Maximum bytes that may be read on the event loop."""


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
    """Return whether reading a sample from offset `place` takes well below a millisecond."""
    return sum(segment.size() for segment in segments) - place <= _SMALL


def sample(segments: Sequence[Segment], place: int, whole: int = FEW) -> Sample:
    """Return lines after an offset: all lines if they have at most `whole` bytes, otherwise the last lines
    and pieces distributed over the remaining log. Blocks while it reads."""
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
        # A piece from the middle may begin within a line.
        skipped = 0 if start == place else data.find(b"\n") + 1
        entries.extend(records(data[skipped:], _entries))
        if ends := data.rfind(b"\n") + 1:
            place = start + ends
        elif until - start >= most // _END:
            place = until  # The beginning of a long line; it is passed over.
    lines = tuple((entry.t, entry.m) for entry in entries if entry.s is not Stream.SERVICE)
    newest = entries[-1] if entries else None
    return Sample(lines, place, read_line(newest.s, newest.m).text if newest else None)


def _read(segments: Sequence[Segment], sizes: Sequence[int], start: int, until: int) -> bytes:
    """Return the bytes from `start` to `until` of all segments together."""
    data = b""
    for segment, size in zip(segments, sizes, strict=True):
        if start < size and until > 0:
            begin = max(start, 0)
            data += segment.read(begin, min(until, size) - begin)
        start, until = start - size, until - size
    return data
