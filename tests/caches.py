"""Taking away a cache of runtimes that a test has made."""

import threading
from pathlib import Path

from trainshed.runtimes.shelf import SETTLING
from trainshed.runtimes.trees import remove_tree


def wait_until_finished() -> None:
    """Until nothing is done any more of what this process has built: it is compiled, and on the disk."""
    for thread in threading.enumerate():
        if thread.name == SETTLING:
            thread.join()


def remove_cache(root: Path) -> None:
    """Once the threads that wait for the disk behind a build are done: they write into it."""
    wait_until_finished()
    remove_tree(root)
