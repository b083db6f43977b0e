"""Holds on to what a program lives in, so that nothing clears it away: a runtime, a layer, an unpacked image.

The lock is the shim's and ends with it, however it ends. Runs on Python 3.6.
"""

import fcntl
import os

BUILT = ".built"
"""The file of a finished directory that is locked (`trainshed.runtimes.shelf`)."""


def hold(places: "list[str]") -> "list[int]":
    """Lock, shared, the finished directories that the `places` are, or lie in. The locks last until the descriptors are
    closed, at the latest with the process; other places, and file systems without locks, are passed over."""
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
