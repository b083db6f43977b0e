"""Sinks of a backup: a directory, or a tar stream. Readable only by the owner."""

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from trainshed.replica.system import durable
from trainshed.serve.backup.manifest import FILE, Entry

_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700


class Sink(Protocol):
    """Takes files one after the other, and the manifest last, without which the backup is not valid."""

    def add(self, entry: Entry, blocks: Iterable[bytes]) -> Entry | None:
        """Write a file, and return the entry with its checksum. None: it had fewer than `entry.size` bytes,
        and does not count."""
        ...

    def finish(self, lines: Iterator[bytes]) -> None:
        """Write the manifest."""
        ...

    def abandon(self) -> None:
        """Remove what was written, as far as that is possible."""
        ...


class DirectorySink:
    """A backup as a directory."""

    def __init__(self, directory: Path) -> None:
        #: The directory, which is empty or does not exist yet.
        self._directory = directory
        self._is_new = not directory.exists()
        directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        directory.chmod(_DIRECTORY_MODE)

    def add(self, entry: Entry, blocks: Iterable[bytes]) -> Entry | None:
        path = self._directory / entry.path
        path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with _private(path, os.O_TRUNC) as file:
            for block in blocks:
                file.write(block)
                digest.update(block)
                size += len(block)
        if size != entry.size:
            path.unlink()
            return None
        os.utime(path, ns=(entry.mtime, entry.mtime))
        return _with_sum(entry, digest.hexdigest())

    def finish(self, lines: Iterator[bytes]) -> None:
        # Everything has to be on disk before the file that completes the backup.
        os.sync()
        unfinished = self._directory / f"{FILE}.new"
        with _private(unfinished, os.O_EXCL) as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self._directory / FILE)
        durable.sync_directory(str(self._directory))

    def abandon(self) -> None:
        for path in self._directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if self._is_new:
            self._directory.rmdir()


class TarSink:
    """Writes a tar archive to an open stream that need not be seekable."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._tar = tarfile.open(  # noqa: SIM115 - closed by `finish`
            mode="w|", fileobj=stream, format=tarfile.PAX_FORMAT
        )

    def add(self, entry: Entry, blocks: Iterable[bytes]) -> Entry | None:
        reader = _Padded(blocks, entry.size)
        self._tar.addfile(_member(entry), reader)
        return _with_sum(entry, reader.digest.hexdigest()) if reader.is_whole else None

    def finish(self, lines: Iterator[bytes]) -> None:
        text = b"".join(lines)
        self._tar.addfile(_member(Entry(FILE, _FILE_MODE, len(text))), io.BytesIO(text))
        self._tar.close()
        self._stream.flush()

    def abandon(self) -> None:
        """Do nothing: what was written stays, but it has no manifest."""


class _Padded(io.RawIOBase):
    """A file of exactly `size` bytes, as its header, already written, says; missing bytes are zeros."""

    def __init__(self, blocks: Iterable[bytes], size: int) -> None:
        self._blocks = iter(blocks)
        self._rest = b""
        self._left = size
        self.is_whole = True
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer only at the end."""
        wanted = self._left if size < 0 else min(size, self._left)
        parts = [self._rest]
        got = len(self._rest)
        while got < wanted:
            block = next(self._blocks, b"")
            if not block:
                self.is_whole = False
                block = bytes(wanted - got)
            parts.append(block)
            got += len(block)
        text = b"".join(parts)
        self._rest = text[wanted:]
        self._left -= wanted
        self.digest.update(text[:wanted])
        return text[:wanted]


def _member(entry: Entry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(entry.path)
    member.size, member.mode, member.mtime = entry.size, _FILE_MODE, entry.mtime // 10**9
    return member


def _with_sum(entry: Entry, sha256: str) -> Entry:
    return Entry(entry.path, entry.mode, entry.size, entry.mtime, sha256)


def _private(path: Path, flags: int) -> BinaryIO:
    flags |= os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, _FILE_MODE), "wb")
