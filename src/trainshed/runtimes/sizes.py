"""How much room files take on the disk, and how old they are."""

import os
from pathlib import Path

_BLOCK = 512


def size_of(*roots: Path) -> int:
    """Bytes on the disk of all below `roots`, each file counted once. What goes while it is looked at counts nothing."""
    seen: set[tuple[int, int]] = set()
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
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            if (stat.st_dev, stat.st_ino) not in seen:
                seen.add((stat.st_dev, stat.st_ino))
                total += stat.st_blocks * _BLOCK
    return total
