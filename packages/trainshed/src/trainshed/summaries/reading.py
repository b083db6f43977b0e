"""Reads the event files of a directory on from where an earlier reading ended, perhaps in another process.

What was read comes in pieces, each with how far its file is read now: a caller that stores both, the piece
first, loses nothing and gets at most the last piece twice. A file is read on from the end of its last whole
record, also if it was replaced by a longer one, as storage clients do at each flush; only a file with another
beginning is read anew.

The framing of its records is that of TFRecord files:

    uint64 length | uint32 masked CRC-32C of it | `length` bytes | uint32 masked CRC-32C of those
    (little-endian)

A file that is being written may end in the middle of a record; that is normal, and the whole records before
it count.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from typing import BinaryIO, Final, Protocol, cast

import google_crc32c
from msgspec import Struct

from trainshed.summaries.scalars import Scalar, read_scalars, written_at

_HEADER: Final = struct.Struct("<QI")
_FOOTER: Final = struct.Struct("<I")
_crc32c = cast(Callable[[bytes], int], vars(google_crc32c)["value"])


class NotEvents(Exception):
    """From `offset` on the file contains no records: it is no event file, or it is damaged there."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"no record begins at byte {offset}")
        self.offset = offset


def masked_crc(data: bytes) -> int:
    """Return the checksum as it is in the file."""
    crc = _crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_records(file: BinaryIO, start: int, *, longest: int) -> Iterator[tuple[bytes, int]]:
    """Yield the whole records from byte `start` on, each with the offset of its end; one that is longer than
    `longest` bytes, or whose own checksum is wrong, is left out. Raises NotEvents where no record begins."""
    size = file.seek(0, 2)
    file.seek(start)
    at = start
    while at + _HEADER.size + _FOOTER.size <= size:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return  # The file was shortened meanwhile.
        length, crc = _HEADER.unpack(head)
        if masked_crc(head[:8]) != crc:
            raise NotEvents(at)
        end = at + _HEADER.size + length + _FOOTER.size
        if end > size:
            return
        if length > longest:
            file.seek(end)
        else:
            body = file.read(length + _FOOTER.size)
            if len(body) < length + _FOOTER.size:
                return
            record = body[:length]
            if _FOOTER.unpack_from(body, length)[0] == masked_crc(record):
                yield record, end
        at = end


MARK: Final = "tfevents"
"""Part of the name of every event file."""
MOST_FILES: Final = 1000
"""Most files of a directory; the others are skipped."""
_AT_ONCE: Final = 10_000
"""About how many scalars a piece has at most."""
_BYTES_AT_ONCE: Final = 64 << 20
_LONGEST: Final = 1 << 20
"""Most bytes of a record that is read: 16 MiB may contain a million scalars, all in memory at once."""
_EDGE: Final = 256
"""Bytes at the beginning, and before the offset, by which a file is recognized. Events contain times: no two
are alike."""


class EventFile(Struct, frozen=True):
    """An event file as it was found."""

    #: Its path below the directory that is followed.
    path: str
    #: Differs if it may have changed in any way.
    stamp: str
    #: When it was written last (seconds since the epoch).
    written: float


class Directory(Protocol):
    """A place with event files in it. Blocks."""

    def files(self) -> Iterator[EventFile]:
        """Yield all event files below it. Raises OSError."""
        ...

    def open(self, file: EventFile) -> BinaryIO:
        """Open a file for reading, from its beginning. Raises OSError."""
        ...


class FileProgress(Struct, frozen=True):
    """How far an event file was read."""

    #: Its path below the directory.
    path: str
    #: Its `EventFile.stamp` when it was read to its end; "" = there was more.
    stamp: str = ""
    #: The end of the last record that was read, in bytes.
    offset: int = 0
    #: A digest of bytes before the offset.
    digest: bytes = b""
    #: When its first event was written (seconds since the epoch, by the program's clock).
    begun: float = 0.0


class Piece(Struct, frozen=True):
    """What was read of one file, and how far it is read now."""

    progress: FileProgress
    scalars: Sequence[Scalar]


def run_of(path: str) -> str:
    """Return the run of an event file: its directory below the one that is read, "" for that itself."""
    return path.rpartition("/")[0]


def read_on(
    directory: Directory, known: Mapping[str, FileProgress], since: float
) -> Iterator[Piece]:
    """Yield what is new since the readings that led to `known` (by path). Blocks; raises OSError, at the end
    if it is that of some files.

    Files of a run come in the order of their names, which contain the time at which they were opened: what
    a restarted program has written comes last. `since` (seconds since the epoch): files that were not written
    to since then are another program's, and so are older values in files that were begun before.
    """
    wanted = (
        file
        for file in directory.files()
        if _is_text(file.path) and (file.path in known or file.written >= since)
    )
    rewritten: set[str] = set()
    failures: list[OSError] = []
    for file in list(islice(wanted, MOST_FILES)):
        progress = known.get(file.path)
        is_due = run_of(file.path) in rewritten
        if progress is not None and progress.stamp == file.stamp and not is_due:
            continue
        try:
            with directory.open(file) as opened:
                if progress is not None and (
                    is_due or progress.digest != _digest(opened, progress.offset)
                ):
                    # The run's files behind it contain what was written later, and must come later again.
                    rewritten.add(run_of(file.path))
                    progress = None
                yield from _read(file, opened, progress or FileProgress(file.path), since)
        except FileNotFoundError:
            continue
        except OSError as failure:
            failures.append(failure)
    for failure in failures:
        raise failure


def _read(
    file: EventFile, opened: BinaryIO, progress: FileProgress, since: float
) -> Iterator[Piece]:
    scalars: list[Scalar] = []
    begun, offset = progress.begun, progress.offset
    reported = offset
    # What came before counts; a file that is repaired has another stamp.
    with suppress(NotEvents):
        for record, end in read_records(opened, offset, longest=_LONGEST):
            if not offset:
                begun = written_at(record)
            offset = end
            if begun >= since:
                scalars += read_scalars(record)
            else:
                scalars += [scalar for scalar in read_scalars(record) if scalar.at >= since]
            if len(scalars) >= _AT_ONCE or end - reported >= _BYTES_AT_ONCE:
                at = opened.tell()
                progress = FileProgress(file.path, "", end, _digest(opened, end), begun)
                yield Piece(progress, scalars)
                opened.seek(at)
                scalars, reported = [], end
    last = FileProgress(file.path, file.stamp, offset, _digest(opened, offset), begun)
    yield Piece(last, scalars)


def _digest(opened: BinaryIO, offset: int) -> bytes:
    """Return a digest of the file up to the offset: of its first and last bytes there."""
    length = min(_EDGE, offset)
    digest = blake2b(offset.to_bytes(8, "big"), digest_size=16)
    for start in (0, offset - length):
        opened.seek(start)
        digest.update(opened.read(length))
    return digest.digest()


def _is_text(path: str) -> bool:
    """Whether a path can be stored as text: a program may give a file any name."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
