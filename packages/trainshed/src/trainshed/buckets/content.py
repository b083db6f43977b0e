"""Receives the content of objects: writes it to a temporary file and computes its checksums (MD5 and CRC32C
in base64) at the same time.

The temporary file is in the hidden part of the store. It is on the same file system as the visible tree, so
that one rename turns the file into an object.
"""

import base64
import contextlib
import hashlib
import os
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import cast

import google_crc32c
from msgspec import Struct

from trainshed.buckets.errors import InvalidRequest, Unavailable

# Get this function, which is written in C, from the library's namespace: the library has no type stubs for
# it.
_crc32c = cast(Callable[[int, bytes], int], vars(google_crc32c)["extend"])

BLOCK = 256 << 10
"""Number of bytes per read or write. It is large enough to make up for a thread switch. It is small enough to
keep two blocks in memory for each of thousands of stalled downloads."""
_SPAN = 64 << 20
"""Number of bytes that the kernel copies per step."""


class Checksums(Struct, frozen=True):
    """MD5 and CRC32C of a content in base64; '' = unknown."""

    md5: str
    crc32c: str


UNKNOWN = Checksums("", "")


class Digest:
    """Running MD5 and CRC32C of a stream of blocks."""

    __slots__ = ("_crc", "_md5", "size")

    def __init__(self) -> None:
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._crc = 0
        #: Number of bytes hashed so far.
        self.size = 0

    def update(self, block: bytes) -> None:
        """Add the next block. Takes a few milliseconds per MiB, and blocks the thread for that time."""
        self._md5.update(block)
        self._crc = _crc32c(self._crc, block)
        self.size += len(block)

    def md5_hex(self) -> str:
        """Return the current MD5 in the form of the XML API."""
        return self._md5.hexdigest()

    def sums(self) -> Checksums:
        """Return the current checksums in base64, of the 16-byte MD5 and of the big-endian 4-byte CRC32C."""
        return Checksums(
            base64.b64encode(self._md5.digest()).decode(),
            base64.b64encode(self._crc.to_bytes(4, "big")).decode(),
        )


def digest_file(fd: int) -> Digest:
    """Hash an open file from its start with positioned reads. Blocking."""
    digest = Digest()
    while block := os.pread(fd, BLOCK, digest.size):
        digest.update(block)
    return digest


def verify(actual: Checksums, expected: Checksums) -> None:
    """Raise `InvalidRequest` if a checksum from the client differs from that of the content."""
    for kind, sent, computed in (
        ("MD5", expected.md5, actual.md5),
        ("CRC32C", expected.crc32c, actual.crc32c),
    ):
        if sent and computed and sent != computed:
            raise InvalidRequest(
                f'Provided {kind} hash "{sent}" doesn\'t match calculated {kind} hash '
                f'"{computed}". Send the content again.'
            )


def parse_goog_hash(values: Iterable[str]) -> Checksums:
    """Return the checksums in `X-Goog-Hash` headers (`crc32c=…,md5=…`). Raises InvalidRequest for other kinds
    of checksums, which would not be verified, and for two different checksums of the same kind."""
    sums = UNKNOWN
    for item in ",".join(values).split(","):
        kind, _, digest = item.strip().partition("=")
        match kind.strip().lower():
            case "md5":
                sums = merge_checksums(sums, Checksums(digest.strip(), ""))
            case "crc32c":
                sums = merge_checksums(sums, Checksums("", digest.strip()))
            case "":
                pass
            case _:
                raise InvalidRequest(f"X-Goog-Hash has the unknown kind {kind[:50]!r}. Send crc32c or md5.")
    return sums


def merge_checksums(*sums: Checksums) -> Checksums:
    """Merge the checksums that a client sent in several places. Raises InvalidRequest if they differ."""
    md5 = sorted({part.md5 for part in sums if part.md5})
    crc32c = sorted({part.crc32c for part in sums if part.crc32c})
    for kind, digests in (("MD5", md5), ("CRC32C", crc32c)):
        if len(digests) > 1:
            raise InvalidRequest(
                f"The request has different {kind} hashes for the same content: "
                f"{' and '.join(digests)[:200]}. Send the content again with one hash."
            )
    return Checksums(*md5 or [""], *crc32c or [""])


def check_md5(body: bytes, sent: str) -> None:
    """Raise InvalidRequest if a body does not match its `Content-MD5`. `sent`: "" = no such header."""
    digest = Digest()
    digest.update(body if sent else b"")
    verify(digest.sums(), Checksums(sent, ""))


FILE_MODE = 0o666
"""Every user may read and write the files in a bucket, and enter its directories (`tree`)."""


class Staged:
    """A file that will become an object. The code that requested the file either commits it to a store or
    calls `discard`."""

    __slots__ = ("_known", "digest", "fd", "path")

    def __init__(self, path: Path, fd: int, digest: Digest) -> None:
        self.path = path
        self.fd = fd
        self.digest = digest
        self._known: Checksums | None = None

    @property
    def sums(self) -> Checksums:
        return self._known or self.digest.sums()

    def copy_from(self, source: int, size: int, known: Checksums | None) -> Generator[None]:
        """Append `size` bytes from the start of another file, one step at a time. Blocking. `known`: the
        checksums of the whole content, or None. With known checksums, the kernel copies the bytes without
        hashing, where possible. Otherwise the bytes are read and added to the running digest."""
        offset = 0
        if known is not None:
            self._known = known
            # Let the kernel copy first, because this copy may share blocks on disk. If the kernel cannot
            # copy, the loop below continues at the same offset and raises real errors.
            with contextlib.suppress(OSError):
                while count := os.copy_file_range(source, self.fd, min(_SPAN, size - offset), offset):
                    offset += count
                    yield
        while offset < size:
            block = os.pread(source, min(BLOCK, size - offset), offset)
            if not block:
                raise Unavailable("The source object was shortened during the copy. Try again.")
            self.write(block)
            offset += len(block)
            yield

    @staticmethod
    def create(directory: Path) -> "Staged":
        path = directory / os.urandom(12).hex()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        return Staged(path, fd, Digest())

    def write(self, block: bytes) -> None:
        """Append a block and hash it. Blocking."""
        write_all(self.fd, block)
        self.digest.update(block)

    def seal(self) -> None:
        """Make the content durable, and set the file's mode."""
        os.fchmod(self.fd, FILE_MODE)
        os.fsync(self.fd)

    def close(self) -> None:
        """Close the descriptor. Further calls have no effect."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def discard(self) -> None:
        """Close the file, and remove it unless it has become an object."""
        self.close()
        self.path.unlink(missing_ok=True)


def write_all(fd: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(fd, view) :]
