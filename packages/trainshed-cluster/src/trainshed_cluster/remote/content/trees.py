"""Walks a directory tree in the order in which it is identified and sent, and identifies its content.

It also runs in child processes: standard library only.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from trainshed_cluster.remote.content.manifest import BUILT

_BYTECODE = "__pycache__"
_SITES = ("site-packages", "dist-packages")

Entry = tuple[str, os.stat_result]
"""Path below the root, and what lstat says."""


def walk(root: Path, *, without_sites: bool = False) -> Iterator[Entry]:
    """Yield everything below `root` in order of names, each directory before its content. Links are not
    followed; sockets and devices are left out. `without_sites`: leave out an interpreter's packages. Raises
    OSError.
    """
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        if without_sites and os.path.basename(directory) in _SITES:
            continue
        with os.scandir(root / directory) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
        below: list[str] = []
        for entry in entries:
            path = f"{directory}/{entry.name}" if directory else entry.name
            if path == BUILT:
                continue  # Each machine has its own packages.
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                if _BYTECODE in path:
                    continue  # It was still being written.
                raise
            if stat.S_ISDIR(status.st_mode):
                below.append(path)
            elif not (
                stat.S_ISREG(status.st_mode)
                or stat.S_ISLNK(status.st_mode)
                or stat.S_ISFIFO(status.st_mode)
            ):
                continue
            yield path, status
        waiting += reversed(below)


class Identity:
    """Identifies the content of a unit by names, kinds, permissions, sizes, times and link targets.

    No file is read: a unit is built once, so that a rebuilt one has other times. Bytecode does not count,
    because the machine may add it to its interpreters.
    """

    def __init__(self, root: Path) -> None:
        self.bytes = 0
        self._root = root
        self._digest = hashlib.sha256()

    def add(self, entry: Entry) -> None:
        """Add the next entry of `walk`. Raises OSError."""
        path, status = entry
        self.bytes += status.st_size
        if path == BUILT or f"/{_BYTECODE}/" in f"/{path}/":
            return
        mode = status.st_mode
        if stat.S_ISLNK(mode):
            rest = os.readlink(f"{self._root}/{path}")
        elif stat.S_ISDIR(mode):
            # The write permission changes while bytecode is added.
            mode, rest = mode & ~0o222, ""
        else:
            rest = f"{status.st_size} {status.st_mtime_ns}"
        line = f"{path}\0{mode:o}\0{rest}\n"
        self._digest.update(line.encode(errors="surrogateescape"))

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


def identify(root: Path, *, without_sites: bool = False) -> Identity:
    """Identify a tree. Blocks. Raises OSError."""
    identity = Identity(root)
    for entry in walk(root, without_sites=without_sites):
        identity.add(entry)
    return identity
