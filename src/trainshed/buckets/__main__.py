"""`python -m trainshed.buckets PARENT SETUP LISTENERS`: the id of the process that it ends with (0 = the one
that has started it), and what `process.main` takes."""

import gc
import os
import sys

from trainshed.loading import compiled
from trainshed.replica.system import kernel


def main() -> None:
    """Loads the rest of itself when it is known with whom it dies, since it holds a service's ports."""
    parent = int(sys.argv[1]) or os.getppid()
    kernel.help_parent(parent)
    compiled.install()
    gc.disable()
    from trainshed.buckets import process

    compiled.release()
    # What was loaded stays: it need not be looked through for garbage again and again.
    gc.freeze()
    gc.enable()
    process.main(parent, *sys.argv[2:])


if __name__ == "__main__":
    main()
