"""Starts the bucket process: `python -m trainshed.buckets PARENT SETUP LISTENERS`.

PARENT is the id of the process that it ends with (0 = the one that started it); the others are the arguments
of `process.main`.
"""

import os
import sys

from trainshed.replica.system import kernel


def main() -> None:
    """Arrange to die with the parent, and only then load the rest, since the process holds a service's
    ports."""
    parent = int(sys.argv[1]) or os.getppid()
    kernel.help_parent(parent)
    from trainshed.buckets import process

    process.main(parent, *sys.argv[2:])


if __name__ == "__main__":
    main()
