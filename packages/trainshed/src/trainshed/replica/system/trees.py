"""Measures and deletes directory trees that a program made.

A program chose every name in there and may change the tree while it is measured. So no link is followed, no
path of more than one step is opened, and what lies on another file system does not count. Discarded trees are
deleted by the system's `rm` at the lowest priority.
"""

import os
import stat
import time
from collections.abc import Iterable

_BLOCK = 512
"""Bytes of a block of `st_blocks`, whatever the file system's block size is."""
_DEEPEST = 200
"""Depth to which nested directories are entered; each of them is open while those below it are."""
_WAY_IN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Level:
    """An open directory with the entries that are still to be measured."""

    def __init__(self, handle: int) -> None:
        """Raises OSError; the caller keeps the handle then."""
        self.handle = handle
        self.entries = os.scandir(handle)

    def close(self) -> None:
        self.entries.close()
        os.close(self.handle)


class TreeSize:
    """The disk use of a directory tree, counted step by step. `found`: bytes so far; a file with several
    names counts in equal parts, one for each name. `names`: number of files and directories counted."""

    def __init__(self, top: str) -> None:
        """Open the tree, and measure nothing yet. Raises OSError."""
        self.found = self.names = 0
        self._levels: list[_Level] = []
        handle = os.open(top, _WAY_IN)
        self._device = os.fstat(handle).st_dev
        self._descend(handle)

    def go_on(self, seconds: float) -> bool:
        """Measure for about so many seconds; return whether the whole tree was measured. What cannot be read
        counts as nothing."""
        until = time.monotonic() + seconds
        while self._levels:
            self._step(self._levels[-1])
            if time.monotonic() >= until:
                break
        return not self._levels

    def close(self) -> None:
        """Close the tree, measured or not."""
        while self._levels:
            self._levels.pop().close()

    def _step(self, level: _Level) -> None:
        try:
            entry = next(level.entries, None)
        except OSError:
            entry = None
        if entry is None:
            self._levels.pop().close()
            return
        try:
            status = entry.stat(follow_symlinks=False)
            if status.st_dev != self._device:
                return
            self.names += 1
            is_directory = stat.S_ISDIR(status.st_mode)
            self.found += status.st_blocks * _BLOCK // (1 if is_directory else status.st_nlink or 1)
            if is_directory and len(self._levels) < _DEEPEST:
                self._descend(os.open(entry.name, _WAY_IN, dir_fd=level.handle))
        except OSError:
            return  # It was deleted meanwhile, or we may not read it.

    def _descend(self, handle: int) -> None:
        try:
            if os.fstat(handle).st_dev != self._device:
                raise OSError("another file system")
            self._levels.append(_Level(handle))
        except OSError:
            os.close(handle)
            raise


def deletion(directories: Iterable[str]) -> list[str]:
    """Return the command that deletes trees at the lowest priority, even if a program took away their owner's
    rights or nested them deeper than a path can be long, and if another process deletes them too."""
    return ["nice", "-n", "19", "sh", "-c", _DELETION, "sh", *directories]


_DELETION = 'chmod -R u+rwX -- "$@"; exec rm -rf -- "$@"'


def delete(*directories: str) -> None:
    """Delete trees by that command. Blocks."""
    import subprocess  # Only here: every module imported earlier makes each fork slower.

    subprocess.run(deletion(directories), stderr=subprocess.DEVNULL, check=False)
