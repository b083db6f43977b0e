"""Locks finished directories of the cache for as long as a program runs in them. The cache cleaner does not
delete a locked directory.

Runs on Python 3.6.
"""

import fcntl
import os

BUILT = ".built"
"""The lock file of a finished directory (`trainshed.runtimes.shelf`)."""


def hold_leases(places: "list[str]") -> "list[int]":
    """Lock each finished directory that is one of the `places` or the parent of one, and return the open
    handles of the locks.

    The locks are shared. They end when the handles are closed, or with the process. Other directories, and
    file systems without locks, are skipped.
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
