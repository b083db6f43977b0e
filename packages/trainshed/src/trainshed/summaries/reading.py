"""Reads the event files of a directory incrementally, even across restarts of the reader.

Data are returned in pieces, each with the new position in its file. A caller that stores first the piece and
then the position loses no data, and receives at most the last piece twice. Reading continues after the last
complete record. This also applies if a longer file has replaced the file, as storage clients do at each
flush. A file that begins differently is read from the start.

Records have the format of TFRecord files, in little-endian byte order:

    uint64 length | uint32 masked CRC-32C of the length | content | uint32 masked CRC-32C of the content

While a file is being written, it may end in the middle of a record. Its complete records are read.
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
    """No record starts at byte `offset` of the file. The file is not an event file, or it is damaged."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"no record begins at byte {offset}")
        self.offset = offset


def masked_crc(data: bytes) -> int:
    """Return the checksum as it is stored in the file."""
    crc = _crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_records(file: BinaryIO, start: int, *, longest: int) -> Iterator[tuple[bytes, int]]:
    """Yield the complete records from byte `start` on, each with the offset of its end. Records that are
    longer than `longest` bytes, or whose content has a wrong checksum, are skipped. Raises NotEvents at a
    position where no record starts."""
    size = file.seek(0, 2)
    file.seek(start)
    at = start
    while at + _HEADER.size + _FOOTER.size <= size:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return  # Stop: a program shortened the file in the meantime.
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
"""Every event file has this text in its name."""
MAX_FILES: Final = 1000
"""Maximum number of files that are read from a directory. Further files are skipped."""
_PIECE_SCALARS: Final = 10_000
"""Approximate maximum number of scalars in a piece."""
_PIECE_BYTES: Final = 64 << 20
_MAX_RECORD: Final = 1 << 20
"""Maximum size of a record in bytes. A record of 16 MiB could contain a million scalars, which would be in
memory at the same time."""
_DIGEST_BYTES: Final = 256
"""Number of bytes at the start of the file, and before the offset, that identify the file. Events contain
times, so these bytes are unique."""


class EventFile(Struct, frozen=True):
    """The state of an event file at the time of a search."""

    #: The file's path below the directory.
    path: str
    #: A text that changes whenever the file may have changed.
    stamp: str
    #: Time of the last write (seconds since the epoch).
    written: float


class Directory(Protocol):
    """A directory with event files, local or remote. Blocking."""

    def files(self) -> Iterator[EventFile]:
        """Yield all event files below the directory. Raises OSError."""
        ...

    def open(self, file: EventFile) -> BinaryIO:
        """Open a file for reading at its start. Raises OSError."""
        ...


class FileProgress(Struct, frozen=True):
    """The position up to which an event file was read."""

    #: The file's path below the directory.
    path: str
    #: The file's `EventFile.stamp` when it was read to its end; "" = it was not read to its end.
    stamp: str = ""
    #: The end of the last record that was read, in bytes.
    offset: int = 0
    #: A digest of bytes before the offset, to detect a replaced file.
    digest: bytes = b""
    #: Time of the file's first event (seconds since the epoch, by the program's clock).
    begun: float = 0.0


class Piece(Struct, frozen=True):
    """New data of one file, and the position after these data."""

    progress: FileProgress
    scalars: Sequence[Scalar]


def run_of(path: str) -> str:
    """Return the run of an event file: its directory below the root; "" for the root."""
    return path.rpartition("/")[0]


def read_new_data(directory: Directory, known: Mapping[str, FileProgress], since: float) -> Iterator[Piece]:
    """Yield new data since the positions `known` (by path). Blocking. Raises OSError. If only some files
    fail, the error is raised after the other files were read.

    Files of a run are in the order of their names, which contain their creation time. Therefore the data of a
    restarted program come last. `since` (seconds since the epoch): files that were not written since then
    belong to another program, and are skipped. In a file that began earlier, values from before `since` are
    skipped.
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
                if progress is not None and (is_due or progress.digest != _digest(opened, progress.offset)):
                    # Read the file again from its start. Also read the later files of the run again, because
                    # they contain later values.
                    rewritten.add(run_of(file.path))
                    progress = None
                yield from _read(file, opened, progress or FileProgress(file.path), since)
        except FileNotFoundError:
            continue
        except OSError as failure:
            failures.append(failure)
    for failure in failures:
        raise failure


def _read(file: EventFile, opened: BinaryIO, progress: FileProgress, since: float) -> Iterator[Piece]:
    scalars: list[Scalar] = []
    begun, offset = progress.begun, progress.offset
    reported = offset
    # Keep the complete records. If a program repairs the file, its stamp changes, and the file is read again.
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
    """Return a digest of bytes at the start of the file and bytes directly before the offset."""
    length = min(_DIGEST_BYTES, offset)
    digest = blake2b(offset.to_bytes(8, "big"), digest_size=16)
    for start in (0, offset - length):
        opened.seek(start)
        digest.update(opened.read(length))
    return digest.digest()


def _is_text(path: str) -> bool:
    """Whether a path can be stored as text. A program may choose any file name."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
