"""Measures and deletes directory trees of programs.

The program chose every name in there and may change the tree during the measurement. So links are not
followed, paths of more than one step are not opened (path traversal), and other file systems do not count.
The system's `rm` deletes discarded trees at the lowest priority.
"""

import contextlib
import os
import stat
import time
from collections.abc import Generator, Iterable

_BLOCK = 512
"""Bytes of a block of `st_blocks`, whatever the file system's block size is."""
_DEEPEST = 200
"""Depth to which nested directories are entered; each of them is open while those below it are."""
_WAY_IN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeSize:
    """The disk use of a directory tree, counted step by step. `found`: bytes so far; a file with several
    names counts in equal parts, one for each name. `names`: number of files and directories counted."""

    def __init__(self, top: str) -> None:
        """Open the tree, and measure the first step. Raises OSError."""
        self.found = self.names = 0
        self._sizes = _sizes(os.open(top, _WAY_IN))
        self.go_on(0.0)

    def go_on(self, seconds: float) -> bool:
        """Measure for about that many seconds; return whether the whole tree was measured. Unreadable parts
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
    handle: int, device: int | None = None, left: int = _DEEPEST
) -> Generator[int, None, None]:
    """Yield the bytes of each file and directory below a directory, whose handle is closed. `device`: where
    they have to lie. `left`: how many levels are entered."""
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
                        below = os.open(entry.name, _WAY_IN, dir_fd=handle)
                        yield from _sizes(below, own, left - 1)


def deletion(directories: Iterable[str]) -> list[str]:
    """Return the command that deletes trees at the lowest priority, even if a program took away their owner's
    rights or nested them deeper than a path can be long, and if another process deletes them too."""
    return ["nice", "-n", "19", "sh", "-c", _DELETION, "sh", *directories]


_DELETION = 'chmod -R u+rwX -- "$@"; exec rm -rf -- "$@"'


def delete(*directories: str) -> None:
    """Delete trees by that command. Blocks."""
    import subprocess  # Only here: every module imported earlier makes each fork slower.

    subprocess.run(deletion(directories), stderr=subprocess.DEVNULL, check=False)
