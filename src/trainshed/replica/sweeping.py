"""Deleting what was thrown away, in a process of its own that everybody else goes before. Runs on Python 3.6."""

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def sweep(trash: str) -> None:
    """Delete everything in the directory `trash`, however large, at the lowest priority."""
    os.nice(19)
    for name in os.listdir(trash):
        delete(os.path.join(trash, name))


def delete(directory: str) -> None:
    """Delete a tree even where a program took away its owner's rights, and if somebody else deletes it too."""
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

    # One pass makes accessible what the next one deletes; nothing more to open means nothing more to do.
    shutil.rmtree(directory, onerror=open_up)
    while opened:
        del opened[:]
        shutil.rmtree(directory, onerror=open_up)
