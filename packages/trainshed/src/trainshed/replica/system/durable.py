"""Writes files so that they survive a power cut, and reads files that may be incomplete."""

import _thread
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


class SyncAhead:
    """A sync of an open file in a thread, while its caller continues: a disk takes milliseconds, and no
    processor. No process may be forked before `wait` returns."""

    def __init__(self, handle: int) -> None:
        self._failure: OSError | None = None
        self._is_running = _thread.allocate_lock()
        self._is_running.acquire()
        try:
            _thread.start_new_thread(self._run, (handle,))
        except RuntimeError:  # No more threads are allowed here.
            self._run(handle)

    def _run(self, handle: int) -> None:
        try:
            os.fsync(handle)
        except OSError as error:
            self._failure = error
        finally:
            self._is_running.release()

    def wait(self) -> None:
        """Return when everything is durable that was written before it began. Raises OSError."""
        with self._is_running:
            if self._failure is not None:
                raise self._failure


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
