"""Starts the bucket process: `python -m trainshed.buckets PARENT SETUP LISTENERS`.

PARENT is a process ID. The bucket process exits when that process exits. 0 = the parent of the bucket
process. SETUP and LISTENERS are the arguments of `process.main`.
"""

import os
import sys

from trainshed.replica.system import kernel


def main() -> None:
    """Run the bucket process. If its parent exits during the slow imports, the bucket process exits too.
    Otherwise it would keep ports open."""
    parent = int(sys.argv[1]) or os.getppid()
    kernel.become_helper(parent)
    from trainshed.buckets import process

    process.main(parent, *sys.argv[2:])


if __name__ == "__main__":
    main()
