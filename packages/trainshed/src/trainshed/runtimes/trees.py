"""Measures directory trees, makes them read-only, and removes them even if they are read-only."""

import os
import shutil
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from trainshed.replica.system import trees

SMALL = 1 << 20
"""Maximum size in bytes of a file that is read as a whole."""
BLOCK = 512
"""Bytes of a block of `st_blocks`, regardless of the file system's block size."""
_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def is_file(path: Path) -> bool:
    """Whether the path is a regular file. Links and special files, which may block a reader, do not count."""
    # Use os.path, because the methods of Path raise an exception for invalid names.
    return os.path.isfile(path) and not path.is_symlink()  # noqa: PTH113


def read_small(path: Path) -> bytes | None:
    """Return the content of a regular file of at most `SMALL` bytes, and None for all other files. Safe for
    paths from untrusted programs."""
    if not is_file(path) or path.lstat().st_size > SMALL:
        return None
    with path.open("rb") as file:
        return file.read(SMALL)


def remove_tree(root: Path) -> None:
    """Remove a directory, even if its content is read-only. Links are removed and not followed."""
    if not root.exists():
        return
    try:
        for directory, names, _ in os.walk(root):
            for name in (".", *names):
                path = Path(directory, name)
                if not path.is_symlink():
                    path.chmod(0o755)
        shutil.rmtree(root)
    except (OSError, RecursionError):
        # `shutil.rmtree` fails if a package's setup script has nested directories deeper than the maximum
        # length of a path. `trees.delete` can remove such directories.
        trees.delete(str(root))
        if root.exists():
            raise


def protect(root: Path, writable: str | None) -> None:
    """Make everything below `root` read-only, and readable to all users, except for `root/writable`.

    Programs may run as separate users. The permissions of the parent directories limit the access.
    """
    _change(root, lambda mode: _readable(mode & ~_WRITE), writable)


def let_read(root: Path) -> None:
    """Give all users the permissions to read and execute that the owner has, for `root` and everything below
    it."""
    root.chmod(stat.S_IMODE(_readable(root.stat().st_mode)))
    _change(root, _readable)


@contextmanager
def let_write(root: Path) -> Generator[None]:
    """Make the directories of a protected tree writable for the owner while the context is open. Raises
    OSError if they belong to another user."""
    directories = [Path(directory) for directory, _, _ in os.walk(root)]
    for directory in directories:
        directory.chmod(stat.S_IMODE(directory.stat().st_mode) | stat.S_IWUSR)
    try:
        yield
    finally:
        protect(root, None)
        freeze(root)


def _change(root: Path, wanted: Callable[[int], int], left: str | None = None) -> None:
    """Change the modes of everything below `root`, except for the directory `root/left`."""
    for directory, names, files in os.walk(root):
        if left in names and Path(directory) == root:
            names.remove(left)
        for name in (*names, *files):
            path = os.path.join(directory, name)  # noqa: PTH118 -- ten thousand paths: no objects for them
            mode = os.lstat(path).st_mode
            if not stat.S_ISLNK(mode) and wanted(mode) != mode:
                Path(path).chmod(stat.S_IMODE(wanted(mode)))


def _readable(mode: int) -> int:
    """Return the mode with the owner's permissions to read and execute given to all users. The result has no
    setuid bits: the owner may be root, and a user's setup script may have set these bits."""
    owners = mode & (stat.S_IRUSR | stat.S_IXUSR)
    return (mode | owners >> 3 | owners >> 6) & ~(stat.S_ISUID | stat.S_ISGID)


def freeze(directory: Path) -> None:
    """Make a directory itself read-only, and readable to all users. Its content is not changed."""
    directory.chmod(stat.S_IMODE(_readable(directory.stat().st_mode & ~_WRITE)))


def size_of(*roots: Path, alone: bool = False) -> int:
    """Return the size on disk in bytes of everything below `roots`. Each file counts once. Files that vanish
    in the meantime do not count. `alone`: count only the bytes that a removal of `roots` would free. A file
    that also has a name elsewhere does not count."""
    elsewhere: dict[tuple[int, int], tuple[int, int]] = {}
    total = 0
    waiting = [str(root) for root in roots]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            size = status.st_blocks * BLOCK
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif status.st_nlink > 1:
                place = (status.st_dev, status.st_ino)
                names, _ = elsewhere.get(place, (status.st_nlink, 0))
                elsewhere[place] = (names - 1, size)
                continue
            total += size
    return total + sum(size for names, size in elsewhere.values() if not (alone and names))
