"""Starts the bucket process: `python -m trainshed.buckets PARENT SETUP LISTENERS`.

PARENT is the ID of the process with which it ends (0 = its parent). The others are the arguments of
`process.main`.
"""

import os
import sys

from trainshed.replica.system import kernel


def main() -> None:
    """Arrange to end with the parent, then import the rest, since the process holds a service's ports."""
    parent = int(sys.argv[1]) or os.getppid()
    kernel.become_helper(parent)
    from trainshed.buckets import process

    process.main(parent, *sys.argv[2:])


if __name__ == "__main__":
    main()
