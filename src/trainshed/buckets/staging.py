"""Content on its way in: a temporary file in the hidden part of the store, hashed as it is written.

It lies on the same file system as the visible tree, so that it becomes an object by one rename.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trainshed.buckets.digests import BLOCK, Checksums, Digest
from trainshed.buckets.errors import Unavailable
from trainshed.buckets.tree import FILE_MODE


class Staged:
    """A file that will become an object; the owner commits it to a store or calls ``discard``."""

    __slots__ = ("_known", "digest", "fd", "path")

    def __init__(self, path: Path, fd: int, digest: Digest) -> None:
        self.path = path
        self.fd = fd
        self.digest = digest
        self._known: Checksums | None = None

    @property
    def sums(self) -> Checksums:
        """Checksums of the content."""
        return self._known or self.digest.sums()

    def copy_from(self, source: int, size: int, known: Checksums | None) -> None:
        """Append ``size`` bytes of another file from its beginning; blocking.

        With ``known`` (the source's checksums, if it is all there will be) the kernel copies and
        nothing is hashed; without, the bytes pass through the running digest.
        """
        offset = 0
        if known is not None:
            self._known = known
            offset = _copy_in_kernel(source, self.fd, size)
        while offset < size:
            block = os.pread(source, min(BLOCK, size - offset), offset)
            if not block:
                raise Unavailable("The source object was cut while it was copied. Try again.")
            if known is None:
                self.write(block)
            else:
                write_all(self.fd, block)
            offset += len(block)

    @staticmethod
    def create(directory: Path) -> Staged:
        """A new, empty temporary file."""
        path = directory / os.urandom(12).hex()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        return Staged(path, fd, Digest())

    def write(self, block: bytes) -> None:
        """Append and hash; blocking."""
        write_all(self.fd, block)
        self.digest.update(block)

    def seal(self) -> None:
        """Make the content durable and give the file its mode."""
        os.fchmod(self.fd, FILE_MODE)
        os.fsync(self.fd)

    def close(self) -> None:
        """Close the descriptor; repeating it is harmless."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def discard(self) -> None:
        """Close and remove the file if it has not become an object."""
        self.close()
        self.path.unlink(missing_ok=True)


def write_all(fd: int, block: bytes) -> None:
    """Write the whole block at the descriptor's position."""
    view = memoryview(block)
    while view:
        view = view[os.write(fd, view) :]


def _copy_in_kernel(source: int, target: int, size: int) -> int:
    """Bytes copied by the kernel, 0 where it cannot; may share the blocks on disk."""
    done = 0
    if sys.platform == "linux":
        try:
            while done < size:
                count = os.copy_file_range(source, target, size - done, offset_src=done)
                if count == 0:
                    break
                done += count
        except OSError:
            return done  # the plain loop goes on from here, and meets a real fault itself
    return done
