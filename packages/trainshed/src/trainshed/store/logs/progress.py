"""Reads how far a replica's program is: a sample of its log's lines, of limited size however long the log
is."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from trainshed.core.streams import Segment
from trainshed.store.logs.lines import Stream, read_line
from trainshed.store.logs.segments import Entry, records

FEW: Final = 128 << 10
"""Up to so many bytes of new lines are read completely, unless a caller wants more."""
_PIECES: Final = 12
"""If there are more, so many pieces are read, evenly spread, and the end."""
_PIECE: Final = 16
"""What part of that one piece is."""
_END: Final = 4
"""What part of that is read at the end."""
_SMALL: Final = 16 << 10
"""Bytes that may be read on the event loop."""


class Place(NamedTuple):
    """A position in a log: a segment, and an offset in it."""

    segment: int = 0
    offset: int = 0


class Sample(Struct, frozen=True):
    """Some lines of a log, oldest first."""

    #: (ns since the epoch, text as it was printed).
    lines: tuple[tuple[int, str], ...]
    place: Place
    #: The message of the last line; "" = there are no new lines.
    last: str = ""


_entries: Final = msgspec.json.Decoder(Entry)


def is_small(segments: Sequence[Segment], place: Place) -> bool:
    """Whether a sample of what follows the place takes well below a millisecond."""
    return place.segment >= len(segments) - 1 and (
        not segments or segments[-1].size() - place.offset <= _SMALL
    )


def sample(segments: Sequence[Segment], place: Place, whole: int = FEW) -> Sample:
    """Return lines after a place: all if they have at most `whole` bytes, otherwise the last ones and pieces
    spread over the rest. Blocks for as long as reading so much takes."""
    if not segments:
        return Sample((), place)
    most = min(whole, FEW)
    parts = list(_parts(segments, place, whole, most // _PIECE, most // _END))
    entries: list[Entry] = []
    reached = place
    for number, offset, size, begins in parts:
        data = segments[number].read(offset, size)
        # A piece from the middle begins within a line.
        skipped = 0 if begins else data.find(b"\n") + 1
        ends = data.rfind(b"\n") + 1
        entries.extend(records(data[skipped:], _entries))
        if ends:
            reached = max(reached, Place(number, offset + ends))
        elif size >= most // _END:
            reached = max(reached, Place(number, offset + size))
    lines = tuple((entry.t, entry.m) for entry in entries if entry.s != "b")
    last = entries[-1] if entries else None
    text = read_line(Stream(last.s), last.m).text if last else ""
    return Sample(lines, reached, text)


def _parts(
    segments: Sequence[Segment], place: Place, whole: int, piece_size: int, end_size: int
) -> Iterator[tuple[int, int, int, bool]]:
    """Yield what is to be read: (segment, offset, bytes, whether a line begins there)."""
    number, offset = place
    last = len(segments) - 1
    end = segments[-1].size()
    if number == last:
        unseen = end - offset
        if unseen <= whole:
            yield last, offset, unseen, True
            return
        for piece in range(_PIECES):
            yield last, offset + (unseen - end_size) * piece // _PIECES, piece_size, piece == 0
    else:
        # All segments except the last one are about equally long.
        for piece in range(_PIECES):
            where = (last - number) * piece / _PIECES + number
            chosen = int(where)
            begin = offset if chosen == number else 0
            size = segments[chosen].size() - begin
            at = begin + int(max(size - piece_size, 0) * (where - chosen))
            yield chosen, at, piece_size, at == begin
    first = max(end - end_size, offset if number == last else 0)
    yield last, first, end - first, first == 0 or (number == last and first == offset)
