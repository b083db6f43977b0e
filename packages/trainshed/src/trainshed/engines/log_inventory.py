"""The inventory lists the jobs that have logs on this machine, with the size of each.

Everything here blocks on the disk, so that callers run it in a thread.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from trainshed.core.names import JobUid
from trainshed.engines.streams import DELETED


class LogInventory:
    """The directories of jobs below `root`, which need not exist yet."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def jobs(self) -> set[JobUid]:
        """Return every job that has a log, and finish deletions that were cut short."""
        jobs: set[JobUid] = set()
        for name in self._names():
            if name.startswith(DELETED):
                shutil.rmtree(self._root / name, ignore_errors=True)
            elif name.isdecimal():
                jobs.add(JobUid(int(name)))
        return jobs

    def size(self, uid: JobUid) -> int:
        """Return how many bytes a job's log takes with the files beside it; 0 = it has none."""
        return sum(_sizes(self._root / str(uid)))

    def _names(self) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self._root)]
        except (FileNotFoundError, NotADirectoryError):
            return []


def _sizes(directory: Path) -> Iterator[int]:
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _sizes(Path(entry.path))
        else:
            with contextlib.suppress(FileNotFoundError):
                yield entry.stat(follow_symlinks=False).st_size
