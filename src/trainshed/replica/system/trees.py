"""Directory trees that a program made: how many bytes they take on the disk, and how they are deleted.

A program chose every name in there and goes on choosing while its tree is measured: no link is followed, no
path of more than one step is opened, and what lies on another file system does not count. What was thrown
away is deleted in a process of its own that everybody else goes before. Runs on Python 3.6.
"""

import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BLOCK = 512
"""Bytes of a block of `st_blocks`, whatever the file system's own are."""
_DEEPEST = 200
"""Directories within each other that are looked into; each of them is open while those below it are."""
_WAY_IN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Level:
    """An open directory and what of it is still to be looked at."""

    __slots__ = ("entries", "handle")

    def __init__(self, handle: int) -> None:
        """Raises OSError; the handle stays the caller's then."""
        self.handle = handle
        # Python 3.6 reads no open directory; where there is no /proc either nothing is measured.
        by_handle = os.scandir in os.supports_fd
        self.entries: "Any" = os.scandir(handle if by_handle else "/proc/self/fd/%d" % handle)

    def close(self) -> None:
        self.entries.close()
        os.close(self.handle)


class TreeSize:
    """How much disk a directory tree takes, counted step by step. `found`: bytes so far; a file with several
    names counts by parts, a part for each name. `names`: how many files and directories they were."""

    __slots__ = ("_device", "_levels", "found", "names")

    def __init__(self, top: str) -> None:
        """Raises OSError."""
        self.found = self.names = 0
        self._levels: "list[_Level]" = []
        handle = os.open(top, _WAY_IN)
        self._device = os.fstat(handle).st_dev
        self._descend(handle)

    def go_on(self, seconds: float) -> bool:
        """Look for about so long; whether all of it has been seen. What cannot be looked at counts
        nothing."""
        until = time.monotonic() + seconds
        while self._levels:
            self._step(self._levels[-1])
            if time.monotonic() >= until:
                break
        return not self._levels

    def close(self) -> None:
        """Let go of it, seen or not."""
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
            return  # Gone meanwhile, or closed to us.

    def _descend(self, handle: int) -> None:
        try:
            if os.fstat(handle).st_dev != self._device:
                raise OSError("another file system")
            self._levels.append(_Level(handle))
        except OSError:
            os.close(handle)
            raise


def sweep(trash: str) -> None:
    """Delete everything in the directory `trash`, however large, at the lowest priority."""
    os.nice(19)
    for name in os.listdir(trash):
        delete(os.path.join(trash, name))


def delete(directory: str) -> None:
    """Delete a tree even where a program took away its owner's rights, however deep it made it, and if
    somebody else deletes it too."""
    import shutil  # Only here: every module imported before makes every fork dearer.

    opened: "list[str]" = []

    def open_up(function: "Any", path: str, error: "Any") -> None:
        for place in (os.path.dirname(path), path):
            try:
                mode = os.lstat(place).st_mode
                if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
                    os.chmod(place, stat.S_IRWXU)
                    opened.append(place)
            except OSError:
                continue  # Gone meanwhile, or somebody else's.

    def remove() -> None:
        try:
            shutil.rmtree(directory, onerror=open_up)
        except RecursionError:
            pass  # What lies too deep for that is brought up next.

    # One pass makes accessible what the next one deletes; nothing more to open means nothing more to do.
    remove()
    while opened or _raise_deepest(directory):
        del opened[:]
        remove()


def _raise_deepest(top: str) -> int:
    """Move what lies too deep below a directory up into it; how many there were."""
    try:
        root = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return 0  # It is gone.
    try:
        return _raise_from(root, root, _DEEPEST)
    finally:
        os.close(root)


def _raise_from(root: int, place: int, left: int) -> int:
    count = 0
    for name in os.listdir(place):
        try:
            if not stat.S_ISDIR(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode):
                continue
            if not left:
                os.rename(name, os.urandom(16).hex(), src_dir_fd=place, dst_dir_fd=root)
                count += 1
                continue
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
        except OSError:
            continue  # Gone meanwhile, or somebody else's.
        try:
            count += _raise_from(root, inner, left - 1)
        finally:
            os.close(inner)
    return count
