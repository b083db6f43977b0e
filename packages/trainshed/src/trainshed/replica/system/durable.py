"""Writes files so that they survive a power cut, reads files that may be incomplete, and locks files."""

import fcntl
import json
import os
from typing import Any


def sync_directory(path: str) -> None:
    """Make creations and renames in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file_system(path: str) -> None:
    """Write everything so far on the file system of `path` to the disk: one call for ten thousand files.
    Blocks. Raises OSError."""
    import ctypes  # Only here: few processes need it.

    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Python itself only has the call for all file systems.
        if ctypes.CDLL(None, use_errno=True).syncfs(handle):
            raise OSError(ctypes.get_errno(), "syncfs failed", path)
    finally:
        os.close(handle)


def boot() -> str:
    """Return an ID of this boot of the machine; "" if it is unknown. Files written since then are valid even
    if they are not on disk."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def read_document(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file does not exist, or holds no complete JSON object.
    Raises OSError for other errors."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None  # pyright: ignore[reportUnknownVariableType]


def write(path: str, content: str | bytes, sync: bool = True, is_shared: bool = False) -> None:
    """Replace a file in one step: readers see the old content or the new one, also after a crash. Raises
    OSError.

    Without `sync` that holds for crashes of processes, not for a power cut. `is_shared`: several processes
    may write it at once. Only the file's owner may read and write it.
    """
    unfinished = "%s.%s.new" % (path, os.urandom(6).hex()) if is_shared else path + ".new"
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        view = memoryview(content.encode("utf-8") if isinstance(content, str) else content)
        while view:  # A disk that is nearly full takes a part first, and then refuses the rest.
            view = view[os.write(handle, view) :]
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(unfinished, path)
    if sync:
        sync_directory(os.path.dirname(path) or ".")


def try_lock(descriptor: int) -> bool:
    """Lock an open file or directory without waiting; false if another process has it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
