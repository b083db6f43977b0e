"""Deleting what was thrown away, in a process of its own that everybody else goes before. Runs on Python 3.6."""

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_DEEPEST = 200
"""Directories within each other that are deleted from the top; a program may have made more than anybody can follow."""


def sweep(trash: str) -> None:
    """Delete everything in the directory `trash`, however large, at the lowest priority."""
    os.nice(19)
    for name in os.listdir(trash):
        delete(os.path.join(trash, name))


def delete(directory: str) -> None:
    """Delete a tree even where a program took away its owner's rights, however deep it made it, and if somebody else
    deletes it too."""
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
