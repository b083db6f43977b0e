"""Reads the event files of a directory incrementally, also across processes.

The data comes in pieces, each with the new progress of its file. A caller that stores first the piece and
then the progress loses nothing, and gets at most the last piece twice. Reading continues after the last
complete record, also if the file was replaced by a longer one, as storage clients do at each flush. A file
with a different beginning is read from the start.

The framing of records is that of TFRecord files:

    uint64 length | uint32 masked CRC-32C of it | `length` bytes | uint32 masked CRC-32C of those
    (little-endian)

A file may end in the middle of a record while it is being written. Its complete records are read.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from typing import BinaryIO, Final, Protocol, cast

import google_crc32c
from msgspec import Struct

from trainshed.summaries.scalars import Scalar, event_time, read_scalars

_HEADER: Final = struct.Struct("<QI")
_FOOTER: Final = struct.Struct("<I")
_crc32c = cast(Callable[[bytes], int], vars(google_crc32c)["value"])


class NotEvents(Exception):
    """The file contains no records from `offset` on: it is not an event file, or it is damaged."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"no record begins at byte {offset}")
        self.offset = offset


def masked_crc(data: bytes) -> int:
    """Return the checksum in the form of the file."""
    crc = _crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_records(file: BinaryIO, start: int, *, longest: int) -> Iterator[tuple[bytes, int]]:
    """Yield the complete records from byte `start` on, each with the offset of its end. Records longer than
    `longest` bytes, or with a wrong checksum of their content, are skipped. Raises NotEvents where no record
    starts."""
    size = file.seek(0, 2)
    file.seek(start)
    at = start
    while at + _HEADER.size + _FOOTER.size <= size:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return  # The file was shortened in the meantime.
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
MAX_FILES: Final = 1000
"""Maximum number of files of a directory. Others are skipped."""
_PIECE_SCALARS: Final = 10_000
"""Approximate maximum number of scalars in a piece."""
_PIECE_BYTES: Final = 64 << 20
_MAX_RECORD: Final = 1 << 20
"""Maximum size of a record in bytes. 16 MiB could contain a million scalars, all in memory at the same
time."""
_DIGEST_BYTES: Final = 256
"""Number of bytes at the start, and before the offset, that identify a file. Events contain times, so that
these bytes are unique."""


class EventFile(Struct, frozen=True):
    """An event file at the time of its discovery."""

    #: Its path below the directory.
    path: str
    #: Changes if the file may have changed in any way.
    stamp: str
    #: Time of the last write (seconds since the epoch).
    written: float


class Directory(Protocol):
    """A place with event files. Blocking."""

    def files(self) -> Iterator[EventFile]:
        """Yield all event files below it. Raises OSError."""
        ...

    def open(self, file: EventFile) -> BinaryIO:
        """Open a file for reading at its start. Raises OSError."""
        ...


class FileProgress(Struct, frozen=True):
    """The progress of reading an event file."""

    #: Its path below the directory.
    path: str
    #: Its `EventFile.stamp` when it was read to its end; "" = more data followed.
    stamp: str = ""
    #: The end of the last record read, in bytes.
    offset: int = 0
    #: A digest of bytes before the offset.
    digest: bytes = b""
    #: Time of its first event (seconds since the epoch, by the program's clock).
    begun: float = 0.0


class Piece(Struct, frozen=True):
    """New data of one file, and the progress after it."""

    progress: FileProgress
    scalars: Sequence[Scalar]


def run_of(path: str) -> str:
    """Return the run of an event file: its directory below the root; "" for the root."""
    return path.rpartition("/")[0]


def read_new_data(
    directory: Directory, known: Mapping[str, FileProgress], since: float
) -> Iterator[Piece]:
    """Yield new data since the progress `known` (by path). Blocking. Raises OSError; if only some files fail,
    at the end.

    Files of a run come in the order of their names, which contain their creation time. So the data of a
    restarted program comes last. `since` (seconds since the epoch): files without writes since then belong to
    another program. The same applies to older values in files that started before.
    """
    wanted = (
        file
        for file in directory.files()
        if _is_text(file.path) and (file.path in known or file.written >= since)
    )
    rewritten: set[str] = set()
    failures: list[OSError] = []
    for file in list(islice(wanted, MAX_FILES)):
        progress = known.get(file.path)
        is_due = run_of(file.path) in rewritten
        if progress is not None and progress.stamp == file.stamp and not is_due:
            continue
        try:
            with directory.open(file) as opened:
                if progress is not None and (
                    is_due or progress.digest != _digest(opened, progress.offset)
                ):
                    # The run's later files contain later values, and must also come again.
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
    # Complete records count. A repaired file has another stamp.
    with suppress(NotEvents):
        for record, end in read_records(opened, offset, longest=_MAX_RECORD):
            if not offset:
                begun = event_time(record)
            offset = end
            if begun >= since:
                scalars += read_scalars(record)
            else:
                scalars += [scalar for scalar in read_scalars(record) if scalar.at >= since]
            if len(scalars) >= _PIECE_SCALARS or end - reported >= _PIECE_BYTES:
                at = opened.tell()
                progress = FileProgress(file.path, "", end, _digest(opened, end), begun)
                yield Piece(progress, scalars)
                opened.seek(at)
                scalars, reported = [], end
    last = FileProgress(file.path, file.stamp, offset, _digest(opened, offset), begun)
    yield Piece(last, scalars)


def _digest(opened: BinaryIO, offset: int) -> bytes:
    """Return a digest of the file's first and last bytes before the offset."""
    length = min(_DIGEST_BYTES, offset)
    digest = blake2b(offset.to_bytes(8, "big"), digest_size=16)
    for start in (0, offset - length):
        opened.seek(start)
        digest.update(opened.read(length))
    return digest.digest()


def _is_text(path: str) -> bool:
    """Whether a path can be stored as text, since a program may choose any name."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
