"""Measures the files of a failed replica and packs them into one archive.

A program chose every name in there and may still be choosing, by a shell: no link is followed, and each file
is opened by its name in an open directory. Reads from the disk, in threads.
"""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from trainshed.eventloop.background import joined

if TYPE_CHECKING:
    import tarfile

_CHUNK = 1 << 18
_DEEPEST = 200
"""Directories within each other that are packed; what a program put deeper is left out."""


def size(directory: Path) -> int:
    """Return the bytes on disk below a directory; what cannot be read counts as 0."""
    total = 0
    # No recursion: a program may have nested directories as deeply as it liked.
    ahead = [str(directory)]
    while ahead:
        with contextlib.suppress(OSError), os.scandir(ahead.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    ahead.append(entry.path)
                total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


async def archive(directory: Path, *besides: Path) -> AsyncGenerator[bytes]:
    """Yield a tar archive of everything below a directory, and of the files `besides`. An archive that was
    cut short lacks its end."""
    reader, writer = os.pipe()
    packing = joined(asyncio.to_thread(_pack, writer, directory, besides))
    try:
        while chunk := await asyncio.to_thread(os.read, reader, _CHUNK):
            yield chunk
    finally:
        os.close(reader)  # A thread that still packs sees a broken pipe.
        await packing


def _pack(writer: int, directory: Path, besides: tuple[Path, ...]) -> None:
    # Imported late: an engine that only starts programs should be up soon.
    import tarfile

    with (
        contextlib.suppress(BrokenPipeError),
        os.fdopen(writer, "wb") as output,
        tarfile.open(fileobj=output, mode="w|", format=tarfile.PAX_FORMAT) as archive_,
    ):
        for file in besides:
            # A report is written a moment after the files are kept.
            with contextlib.suppress(FileNotFoundError):
                archive_.add(file, file.name)
        for path, directories, files, handle in os.fwalk(directory, follow_symlinks=False):
            inside = Path(path).relative_to(directory)
            if len(inside.parts) >= _DEEPEST:
                del directories[:]
            for name in sorted([*directories, *files]):
                _add(archive_, handle, name, str(inside / name))


def _add(archive_: "tarfile.TarFile", parent: int, name: str, called: str) -> None:
    """Add one entry. What has vanished, cannot be read, or is useless elsewhere (a socket, a device) is left
    out."""
    import tarfile

    entry, content = tarfile.TarInfo(called), None
    with contextlib.ExitStack() as opened:
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                entry.type = tarfile.DIRTYPE
            elif stat.S_ISLNK(status.st_mode):
                entry.type = tarfile.SYMTYPE
                entry.linkname = os.readlink(name, dir_fd=parent)
            elif stat.S_ISREG(status.st_mode):
                # Another file may stand there by now: no link is followed, and no pipe waited at.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                content = opened.enter_context(os.fdopen(os.open(name, flags, dir_fd=parent), "rb"))
                status = os.fstat(content.fileno())
            if content is None and not (entry.isdir() or entry.issym()):
                return
        except OSError:
            return
        entry.mode, entry.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        if content is None:
            archive_.addfile(entry)
        elif stat.S_ISREG(status.st_mode):
            entry.size = status.st_size
            archive_.addfile(entry, _Padded(content, entry.size))


class _Padded:
    """A file of exactly the size that its tar entry announces, padded with zeros if a shell truncates it
    meanwhile."""

    def __init__(self, content: IO[bytes], size_: int) -> None:
        self._content = content
        self._left = size_

    def read(self, wanted: int = -1) -> bytes:
        wanted = self._left if wanted < 0 else min(wanted, self._left)
        data = self._content.read(wanted)
        data += bytes(wanted - len(data))
        self._left -= wanted
        return data
