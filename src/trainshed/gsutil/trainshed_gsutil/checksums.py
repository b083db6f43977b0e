"""Computes MD5 and CRC32C in the form of the storage API."""

import base64
import hashlib
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Callable

BLOCK = 1 << 20
SLOW_LIMIT = 16 << 20
"""Bytes up to which CRC32C is computed in pure Python where no library is there for it: that takes some
seconds."""
_POLYNOMIAL = 0x82F63B78


def base64_text(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")


def md5_of(file: "IO[bytes]") -> str:
    """The MD5 of everything from the file's position on."""
    digest = hashlib.md5()
    for block in iter(lambda: file.read(BLOCK), b""):
        digest.update(block)
    return base64_text(digest.digest())


def crc32c_of(file: "IO[bytes]", extend: "Callable[[int, bytes], int]") -> str:
    """The CRC32C of everything from the file's position on; `extend` is `fast_crc32c()` or `extended`."""
    value = 0
    for block in iter(lambda: file.read(BLOCK), b""):
        value = extend(value, block)
    return base64_text(struct.pack(">I", value))


def fast_crc32c() -> "Callable[[int, bytes], int] | None":
    """Returns a compiled CRC32C, if the Python that runs this has a library for it."""
    import site

    site.main()  # gsutil runs with -S, since nothing else needs the installed packages.
    try:
        import google_crc32c
    except ImportError:
        return None
    library: "Any" = google_crc32c
    return library.extend if library.implementation == "c" else None


def extended(value: int, data: bytes) -> int:
    """Returns the CRC32C of data whose CRC32C is `value`, followed by `data`."""
    table = _table()
    value ^= 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


_made: "list[int]" = []


def _table() -> "list[int]":
    if not _made:
        for index in range(256):
            value = index
            for _ in range(8):
                value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
            _made.append(value)
    return _made
