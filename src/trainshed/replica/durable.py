"""Writes that survive a power cut, and the lock that is the fence of a slot. Runs on Python 3.6."""

import fcntl
import os


def sync_directory(path: str) -> None:
    """Make creations and renames in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write(path: str, text: str, sync: bool = True) -> None:
    """Replace a file in one step: readers see the old text or the new one, also after a crash.

    Without `sync` that holds for crashes of processes, not for a power cut.
    """
    unfinished = path + ".new"
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, text.encode("utf-8"))
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(unfinished, path)
    if sync:
        sync_directory(os.path.dirname(path) or ".")


def create(path: str, text: str) -> int:
    """Create a file that must not exist and return its open handle, not synced yet.

    Raises FileExistsError: somebody was here before.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(handle, text.encode("utf-8"))
    return handle


def try_lock(path: str) -> int:
    """Take the exclusive lock of `path`; the open handle holds it. -1: somebody else has it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return -1
    return handle
