"""Directories for what a tool has half pulled. Gone with the pull, or with the next one if its service was killed."""

import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from trainshed.runtimes.shelf import try_lock
from trainshed.runtimes.trees import remove_tree


class Scratch:
    """Below `root`. Safe for several threads and processes: whoever uses a directory holds a lock on it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def place(self) -> Generator[Path]:
        """An empty directory, removed with all that is in it when the context is left. Raises OSError."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._alone():
            place = self._root / secrets.token_hex(8)
            place.mkdir(mode=0o700)
            holding = _open_locked(place)
        try:
            yield place
        finally:
            remove_tree(place)
            if holding is not None:
                os.close(holding)

    def sweep(self) -> None:
        """Remove what nobody holds. Blocks; raises OSError."""
        if not self._root.is_dir():
            return
        with self._alone():
            for left in self._root.iterdir():
                if left.is_dir() and (holding := _open_locked(left)) is not None:
                    remove_tree(left)
                    os.close(holding)

    @contextmanager
    def _alone(self) -> Generator[None]:
        """While a directory is made and not yet held, and while it is looked which are held."""
        descriptor = os.open(self._root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _open_locked(place: Path) -> int | None:
    """A locked descriptor of it; None: somebody else has it."""
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    if try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None
