"""How much room files take on the disk, and how old they are."""

import os
from pathlib import Path

_BLOCK = 512


def size_of(*roots: Path, alone: bool = False) -> int:
    """Bytes on the disk of all below `roots`, each file counted once. What goes while it is looked at counts nothing.

    `alone`: only what would be free if `roots` were removed: files that have a name elsewhere as well stay.
    """
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
                stat = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            size = stat.st_blocks * _BLOCK
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif stat.st_nlink > 1:
                place = (stat.st_dev, stat.st_ino)
                names, _ = elsewhere.get(place, (stat.st_nlink, 0))
                elsewhere[place] = (names - 1, size)
                continue
            total += size
    return total + sum(size for names, size in elsewhere.values() if not (alone and names))
