"""What a process has once: log lines, its report to the service, and what is closed at its exit."""

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
    """The report of one process to the service: a small file at `path`, or nowhere if that is None, that is
    replaced as a whole.

        {"notes": [{"id": "mode", "severity": "INFO", "text": "…"}]}

    Notes are only added; the service puts each, once, on the job's timeline. Programs must not fail for want
    of a report: nothing here raises. Thread-safe."""

    def __init__(self, path: Optional[str]) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._notes: Dict[str, Dict[str, str]] = {}

    def note(self, name: str, text: str, severity: str = "INFO") -> bool:
        """Add a note; a later one of the same name is ignored (True). `severity`: INFO, WARNING, ERROR.
        Returns False if it could not be written; otherwise the service logs it as well."""
        with self._lock:
            if name in self._notes:
                return True
            self._notes[name] = {"id": name, "severity": severity, "text": text}
            return self._write()

    def begin(self) -> None:
        """Write the report, so that the service sees that there is somebody to report."""
        with self._lock:
            self._write()

    def _write(self) -> bool:
        if not self._path:
            return False
        # Other processes of the program have written to the file, too.
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
            return False  # A full disk must not end the program.
        return True


class Closable(Protocol):
    def close(self) -> None: ...


def say(text: str) -> None:
    """Write a line to standard error, since a program's own logging may be set up later, or never. For the
    service it is JSON with a severity, or it would count as an error."""
    line = f"trainshed reduction: {text}"
    if os.environ.get(REPORT_FILE):
        line = json.dumps({"severity": "INFO", "message": line})
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return  # There is no standard error, or it is closed.


@functools.lru_cache(maxsize=None)
def reports() -> Reports:
    """Return this process's report. A replica has one file: of its processes, only the first writes it."""
    first = os.environ.get("LOCAL_RANK", "0") in ("", "0")
    return Reports(os.environ.get(REPORT_FILE) if first else None)


def tell(note: str, text: str, severity: str = "INFO") -> None:
    """Report a text under the name `note`, or log it where the service reads no report."""
    if not reports().note(note, text, severity):
        say(text)


_open: List[Closable] = []


def close_at_exit(thing: Closable) -> None:
    """Close `thing` at the process's exit, before those of earlier calls: a program that only ends leaves its
    groups in good order, and no thread outlives the interpreter."""
    _open.append(thing)


def closed(thing: Closable) -> None:
    if thing in _open:
        _open.remove(thing)


def _close() -> None:
    for thing in _open[::-1]:
        try:
            thing.close()
        except Exception as error:
            # The process is ending: the others are closed as well, and its exit status stays.
            say(f"not closed in good order: {error}")


atexit.register(_close)
# A forked child (such as a data loader's) has its parent's sockets but not its threads: it must not send BYE
# in the parent's name.
os.register_at_fork(after_in_child=_open.clear)
