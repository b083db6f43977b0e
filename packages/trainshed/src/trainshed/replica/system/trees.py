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
"""Maximum depth of nested directories. A directory stays open while its subdirectories are measured."""
_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeSize:
    """The disk use of a directory tree, measured step by step. `found`: bytes so far; the size of a file with
    several hard links is divided by their number. `names`: files and directories counted so far."""

    def __init__(self, top: str) -> None:
        """Open the tree and measure its first file. Raises OSError."""
        self.found = self.names = 0
        self._sizes = _sizes(os.open(top, _OPEN_FLAGS))
        self.measure(0.0)

    def measure(self, seconds: float) -> bool:
        """Continue the measurement for about `seconds`; return whether it is complete. Unreadable directories
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


def _sizes(
    handle: int, device: int | None = None, left: int = _MAX_DEPTH
) -> Generator[int, None, None]:
    """Yield the bytes of each file and directory below a directory; close its `handle` at the end. `device`:
    the only file system that counts. `left`: number of levels to enter."""
    with contextlib.ExitStack() as open_here, contextlib.suppress(OSError):
        open_here.callback(os.close, handle)
        own = os.fstat(handle).st_dev
        for entry in open_here.enter_context(os.scandir(handle)) if device in (None, own) else ():
            with contextlib.suppress(OSError):  # It was deleted, or is unreadable.
                status = entry.stat(follow_symlinks=False)
                if status.st_dev == own:
                    is_directory = stat.S_ISDIR(status.st_mode)
                    yield status.st_blocks * _BLOCK // (1 if is_directory else status.st_nlink or 1)
                    if is_directory and left:
                        below = os.open(entry.name, _OPEN_FLAGS, dir_fd=handle)
                        yield from _sizes(below, own, left - 1)


def deletion_command(directories: Iterable[str]) -> list[str]:
    """Return a command that deletes trees at the lowest priority. It also deletes directories without
    permissions and nesting beyond the length of a path, and tolerates other processes that delete them."""
    return ["nice", "-n", "19", "sh", "-c", _DELETION, "sh", *directories]


_DELETION = 'chmod -R u+rwX -- "$@"; exec rm -rf -- "$@"'


def delete(*directories: str) -> None:
    """Delete trees with `deletion_command`. Blocks."""
    import subprocess  # Only here: every module imported earlier makes each fork slower.

    subprocess.run(deletion_command(directories), stderr=subprocess.DEVNULL, check=False)
