"""Writes that survive a power cut. Runs on Python 3.6."""

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
        view = memoryview(text.encode("utf-8"))
        while view:  # A disk that is nearly full takes a part, and only then says so.
            view = view[os.write(handle, view) :]
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(unfinished, path)
    if sync:
        sync_directory(os.path.dirname(path) or ".")
