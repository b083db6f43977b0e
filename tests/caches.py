"""Taking away a cache of runtimes that a test has made."""

import threading
from pathlib import Path

from trainshed.runtimes.shelf import SETTLING
from trainshed.runtimes.trees import remove_tree


def remove_cache(root: Path) -> None:
    """Once the threads that wait for the disk behind a build are done: they write into it."""
    for thread in threading.enumerate():
        if thread.name == SETTLING:
            thread.join()
    remove_tree(root)
