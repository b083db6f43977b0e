"""Finds and opens event files in a local directory while programs write to it. Blocking.

The directory is untrusted. These rules prevent path traversal and overload: Each step starts at an open
directory and follows no links. Only plain files are read. The number of entries is limited.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Struct

from trainshed.summaries.reading import MARK, EventFile


class LogDirectory(Struct, frozen=True):
    """A job's directory with event files."""

    #: A name that is unique among the directories of a viewer. It consists of letters, digits, `.`, `_` and
    #: `-`. None = the viewer has only this directory.
    label: str | None
    #: `gs://BUCKET/PATH`.
    uri: str
    #: The project whose programs wrote the directory.
    project: str
    #: The service account of the job.
    account: str


class ShownDirectory(Struct, frozen=True):
    """A directory of event files in a viewer."""

    #: The directory's name in the viewer; None = the viewer has only this directory.
    label: str | None
    #: A directory that belongs to the service.
    base: Path
    #: The path below `base`, as a list of names. A program chose the names, so links in this path are not
    #: followed.
    below: tuple[str, ...]
    #: The device and inode of the directory. They change if the directory is replaced.
    identity: tuple[int, int] = (0, 0)


_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe must not block until a program writes to it.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_DEPTH: Final = 20
_MAX_DIRECTORIES: Final = 1000
_MAX_ENTRIES: Final = 50_000


class LocalDirectory:
    """Implements `reading.Directory`. `base`: a directory of the service. `below`: the path below `base`,
    whose names a program chose."""

    def __init__(self, base: Path, below: tuple[str, ...]) -> None:
        self._base = base
        self._below = below

    def files(self) -> Iterator[EventFile]:
        """See `reading.Directory`. Files are in the order of the directories' names."""
        try:
            handle = self._open_directory(self._below)
        except OSError:
            return  # No files: the directory does not exist yet.
        try:
            yield from _Walk().directory(handle, "", 0)
        finally:
            os.close(handle)

    def identity(self) -> tuple[int, int]:
        """Return the directory's device and inode. Raises OSError."""
        handle = self._open_directory(self._below)
        try:
            status = os.fstat(handle)
            return status.st_dev, status.st_ino
        finally:
            os.close(handle)

    def open(self, file: EventFile) -> BinaryIO:
        *directories, leaf = file.path.split("/")
        handle = self._open_directory((*self._below, *directories))
        try:
            opened = os.open(leaf, _FILE, dir_fd=handle)
        finally:
            os.close(handle)
        status = os.fstat(opened)
        # A hard link could give another name to a file that the program itself must not read. Reject files
        # with several names.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(opened)
            raise FileNotFoundError(f"{file.path} is not a regular file with only one name")
        return os.fdopen(opened, "rb", buffering=1 << 18)

    def _open_directory(self, names: Sequence[str]) -> int:
        """Open the directory at this path below `base`. Raises OSError."""
        handle = os.open(self._base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in names:
            try:
                below = os.open(name, _DIRECTORY, dir_fd=handle)
            finally:
                os.close(handle)
            handle = below
        return handle


class _Walk:
    def __init__(self) -> None:
        self._directories = 0
        self._entries = 0

    def directory(self, handle: int, path: str, depth: int) -> Iterator[EventFile]:
        self._directories += 1
        below: list[str] = []
        names: list[str] = []
        with os.scandir(handle) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries > _MAX_ENTRIES:
                    break
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
                elif MARK in entry.name and entry.is_file(follow_symlinks=False):
                    names.append(entry.name)
        for name in sorted(names):
            with suppress(OSError):
                status = os.stat(name, dir_fd=handle, follow_symlinks=False)
                identity = f"{status.st_dev}-{status.st_ino}"
                stamp = f"{identity}-{status.st_size}-{status.st_mtime_ns}"
                yield EventFile(path + name, stamp, status.st_mtime)
        for name in sorted(below):
            if depth == _MAX_DEPTH or self._directories >= _MAX_DIRECTORIES:
                return
            try:
                inner = os.open(name, _DIRECTORY, dir_fd=handle)
            except OSError:
                continue  # Skip the entry: it was deleted or is a link.
            try:
                yield from self.directory(inner, f"{path}{name}/", depth + 1)
            finally:
                os.close(inner)
