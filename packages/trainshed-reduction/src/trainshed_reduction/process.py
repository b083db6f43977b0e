"""Objects that exist once per process: the log, the report to the service, and the cleanup at exit."""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
from typing import Dict, List, Optional, Protocol

from trainshed_reduction.variables import REPORT_FILE


class Reports:
    """The report of one process to the service. It is a small file at `path`, which is replaced atomically.
    None = the service reads no report.

        {"notes": [{"id": "mode", "severity": "INFO", "text": "…"}]}

    Notes are never removed. The service adds each note once to the job's timeline. No method raises an
    exception, because a program must not fail because of its report. Thread-safe."""

    def __init__(self, path: Optional[str]) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._notes: Dict[str, Dict[str, str]] = {}

    def add_note(self, name: str, text: str, severity: str = "INFO") -> bool:
        """Add a note (a message for the job's timeline), unless a note of that name exists. `severity`: INFO,
        WARNING or ERROR. Return False if the note could not be written. The caller need not log a written
        note, because the service logs it."""
        with self._lock:
            if name in self._notes:
                return True
            self._notes[name] = {"id": name, "severity": severity, "text": text}
            return self._write()

    def announce(self) -> None:
        """Write the report file even without notes (messages for the job's timeline). Its existence shows the
        service that reducers are available to this program."""
        with self._lock:
            self._write()

    def _write(self) -> bool:
        if not self._path:
            return False
        # Read the file first, because other processes of the program also write to it.
        try:
            with open(self._path, encoding="utf-8") as file:
                notes = {note["id"]: note for note in json.load(file)["notes"]}
        except (OSError, ValueError, KeyError, TypeError):
            notes = {}
        text = json.dumps({"notes": list({**notes, **self._notes}.values())})
        own = "{}.{}".format(self._path, os.getpid())
        try:
            with open(own, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(own, self._path)
        except OSError:
            return False  # Do not raise: the program must not fail if the disk is full.
        return True


class Closable(Protocol):
    def close(self) -> None: ...


def log(text: str) -> None:
    """Write a line to standard error. Python's `logging` is not used, because the program may not configure
    it. In a job, the line is JSON with a severity, because the service treats plain text as an error."""
    line = f"trainshed reduction: {text}"
    if os.environ.get(REPORT_FILE):
        line = json.dumps({"severity": "INFO", "message": line})
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return  # Drop the line: standard error does not exist or is closed.


@functools.lru_cache(maxsize=None)
def reports() -> Reports:
    """Return the report of this process. Only the first process of a replica writes the replica's report
    file."""
    first = os.environ.get("LOCAL_RANK", "0") in ("", "0")
    return Reports(os.environ.get(REPORT_FILE) if first else None)


def report(note: str, text: str, severity: str = "INFO") -> None:
    """Add a message for the job's timeline, with the name `note`, to this process's report, or log the text
    if the report cannot be written."""
    if not reports().add_note(note, text, severity):
        log(text)


_open: List[Closable] = []


def close_at_exit(resource: Closable) -> None:
    """Close `resource` when the process exits. Resources are closed in the reverse order of these calls. As a
    result, a program leaves its groups before it ends, and no thread outlives the interpreter."""
    _open.append(resource)


def remove_at_exit(resource: Closable) -> None:
    """Undo `close_at_exit`, because `resource` was closed earlier."""
    if resource in _open:
        _open.remove(resource)


def _close() -> None:
    for resource in _open[::-1]:
        try:
            resource.close()
        except Exception as error:
            # Continue, so that the other resources are closed and the exit status does not change.
            log(f"closing at exit failed: {error}")


atexit.register(_close)
# A forked child, such as a data loader, inherits its parent's sockets, but not the parent's threads. It must
# not close the parent's resources, because that would send BYE in the parent's name.
os.register_at_fork(after_in_child=_open.clear)
