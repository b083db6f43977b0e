"""Measures and deletes directory trees of programs.

The program chose all names in the tree and may change it during the measurement. To prevent path traversal,
links are not followed, and each directory is opened relative to its parent. Other file systems do not count.
The system's `rm` deletes trees at the lowest priority.
"""

import contextlib
import os
import stat
import time
from collections.abc import Generator, Iterable

_BLOCK = 512
"""Bytes of a block of `st_blocks`, independent of the file system's block size."""
_MAX_DEPTH = 200
"""Maximum depth of nested directories. Each directory stays open while its subdirectories are measured."""
_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeSize:
    """The disk use of a directory tree, measured in steps. `found`: bytes so far; a file with several hard
    links counts as its size divided by the number of links. `names`: number of files and directories."""

    def __init__(self, top: str) -> None:
        """Open the tree and start the measurement. Raises OSError."""
        self.found = self.names = 0
        self._sizes = _sizes(os.open(top, _OPEN_FLAGS))
        self.measure(0.0)

    def measure(self, seconds: float) -> bool:
        """Continue the measurement for about `seconds`. Return whether it is complete. Unreadable directories
        do not count."""
        until = time.monotonic() + seconds
        for size in self._sizes:
            self.found += size
            self.names += 1
            if time.monotonic() >= until:
                return False
        return True

    def close(self) -> None:
        self._sizes.close()


def _sizes(handle: int, device: int | None = None, left: int = _MAX_DEPTH) -> Generator[int, None, None]:
    """Yield the bytes of each file and directory below a directory, and close its file descriptor `handle` at
    the end. `device`: only files on this file system count. `left`: number of directory levels to enter."""
    with contextlib.ExitStack() as open_here, contextlib.suppress(OSError):
        open_here.callback(os.close, handle)
        own = os.fstat(handle).st_dev
        for entry in open_here.enter_context(os.scandir(handle)) if device in (None, own) else ():
            with contextlib.suppress(OSError):  # Skip a deleted or unreadable file.
                status = entry.stat(follow_symlinks=False)
                if status.st_dev == own:
                    is_directory = stat.S_ISDIR(status.st_mode)
                    yield status.st_blocks * _BLOCK // (1 if is_directory else status.st_nlink or 1)
                    if is_directory and left:
                        below = os.open(entry.name, _OPEN_FLAGS, dir_fd=handle)
                        yield from _sizes(below, own, left - 1)


def deletion_command(directories: Iterable[str]) -> list[str]:
    """Return a command that deletes trees at the lowest priority. It also deletes directories without
    permissions, and directories that are nested beyond the maximum length of a path. Other processes may
    delete the same trees."""
    return ["nice", "-n", "19", "sh", "-c", _DELETION, "sh", *directories]


_DELETION = 'chmod -R u+rwX -- "$@"; exec rm -rf -- "$@"'


def delete(*directories: str) -> None:
    """Delete trees with `deletion_command`. Blocks."""
    # Imported late: every module that is imported before a fork slows down the fork.
    import subprocess

    subprocess.run(deletion_command(directories), stderr=subprocess.DEVNULL, check=False)
