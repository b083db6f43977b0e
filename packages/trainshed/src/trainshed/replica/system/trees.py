"""Measures and deletes directory trees that a program made.

A program chose every name in there and may change the tree while it is measured. So no link is followed, no
path of more than one step is opened, and what lies on another file system does not count. Discarded trees are
deleted by the system's `rm` at the lowest priority.
"""

import os
import stat
import sys
import time

_BLOCK = 512
"""Bytes of a block of `st_blocks`, whatever the file system's block size is."""
_DEEPEST = 200
"""Depth to which nested directories are entered; each of them is open while those below it are."""
_AT_ONCE = 500
"""Trees that a process is told to delete."""
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


def sweep(trash: str) -> None:
    """Delete everything in the directory `trash`, whatever its size, at the lowest priority. Blocks until it
    is done. In a process of its own: run this file, with the directory."""
    os.nice(19)
    places = [os.path.join(trash, name) for name in os.listdir(trash)]
    for at in range(0, len(places), _AT_ONCE):
        delete(*places[at : at + _AT_ONCE])


def delete(*directories: str) -> None:
    """Delete trees, even if a program took away their owner's rights or nested them deeper than a path can be
    long, and if another process deletes them too. Blocks."""
    import subprocess  # Only here: every module imported earlier makes each fork slower.

    for command in (("chmod", "-R", "u+rwX"), ("rm", "-rf")):
        subprocess.run([*command, "--", *directories], stderr=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    sweep(sys.argv[1])
