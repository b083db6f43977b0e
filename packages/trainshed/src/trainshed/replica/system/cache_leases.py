"""Locks finished directories of the cache while a program uses them. The cache cleaner does not delete a
locked directory. Runs on Python 3.6."""

import fcntl
import os

BUILT = ".built"
"""Name of the lock file in a finished directory. `trainshed.runtimes.shelf` creates it."""


def hold_leases(places: "list[str]") -> "list[int]":
    """Lock each finished directory that is one of the `places` or the parent of one. Return the file
    descriptors of the locks.

    The locks are shared. They end when the file descriptors are closed or the process exits. Directories that
    are not finished, and file systems without locks, are skipped.
    """
    held: "list[int]" = []
    for directory in {where for place in places for where in (place, os.path.dirname(place))}:
        try:
            handle = os.open(os.path.join(directory, BUILT), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
        else:
            held.append(handle)
    return held
