"""The framing of event files: records with a length and two checksums (the TFRecord format).

    uint64 length | uint32 masked CRC-32C of it | `length` bytes | uint32 masked CRC-32C of those
    (little-endian)

Pure, except for the file that it is given. A file that is being written may end in the middle of a record;
that is normal, and the whole records before it count.
"""

import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, cast

import google_crc32c

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
