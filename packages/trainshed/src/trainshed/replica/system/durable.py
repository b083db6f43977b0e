"""Writes files so that they survive a power failure, reads files that may be incomplete, and locks files."""

import fcntl
import json
import os
from typing import Any


def sync_directory(path: str) -> None:
    """Make the creations and renames of files in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file_system(path: str) -> None:
    """Write all earlier changes on the file system of `path` to the disk, with one call for any number of
    files. Blocks. Raises OSError."""
    import ctypes  # Imported late, because few processes need it.

    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Not `os.sync`, because that call would sync all file systems.
        if ctypes.CDLL(None, use_errno=True).syncfs(handle):
            raise OSError(ctypes.get_errno(), "syncfs failed", path)
    finally:
        os.close(handle)


def boot_id() -> str:
    """Return the ID of this boot of the machine, or "" if it is unknown. Files that were written since the
    boot are readable even if they are not on the disk yet."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def read_document(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file. Returns None if the file does not exist or contains no complete JSON
    object. Raises OSError for other errors."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None  # pyright: ignore[reportUnknownVariableType]


def write(path: str, content: str | bytes, sync: bool = True, is_shared: bool = False) -> None:
    """Replace a file atomically: readers see either the old content or the new content, even after a crash.
    Raises OSError.

    `sync`: whether the replacement also survives a power failure, and is atomic then. `is_shared`: several
    processes may write the file at the same time. Only the file's owner may read and write the file.
    """
    unfinished = "%s.%s.new" % (path, os.urandom(6).hex()) if is_shared else path + ".new"
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        view = memoryview(content.encode("utf-8") if isinstance(content, str) else content)
        # A nearly full disk first accepts a part of the data and then rejects the rest.
        while view:
            view = view[os.write(handle, view) :]
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(unfinished, path)
    if sync:
        sync_directory(os.path.dirname(path) or ".")


def try_lock(descriptor: int) -> bool:
    """Lock an open file or directory without waiting. Return False if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
