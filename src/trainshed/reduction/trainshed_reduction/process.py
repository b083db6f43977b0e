"""What a worker's process has once: its lines in the log, its report to the service, and what must end with
it."""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
from typing import List, Protocol

from trainshed_reduction.reports import Reports
from trainshed_reduction.variables import REPORT_FILE


class Closable(Protocol):
    def close(self) -> None: ...


def say(text: str) -> None:
    """A line on standard error: programs' own logging may be set up later, or never. It is no error, and
    where the service reads it, it says so."""
    line = f"trainshed reduction: {text}"
    if os.environ.get(REPORT_FILE):
        line = json.dumps({"severity": "INFO", "message": line})
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return  # Closed, or none: nobody reads it.


@functools.lru_cache(maxsize=None)
def reports() -> Reports:
    """The file is the replica's: of several processes in it, the first one's."""
    first = os.environ.get("LOCAL_RANK", "0") in ("", "0")
    return Reports(os.environ.get(REPORT_FILE, "") if first else "")


def tell(note: str, text: str, severity: str = "INFO") -> None:
    """`note`: its name in the report. Where nobody reads that, it is a line in the log."""
    if not reports().note(note, text, severity):
        say(text)


_open: List[Closable] = []


def close_at_exit(thing: Closable) -> None:
    """So that a program that just ends leaves its groups in good order, and no thread outlives the
    interpreter."""
    _open.append(thing)


def closed(thing: Closable) -> None:
    if thing in _open:
        _open.remove(thing)


def _close() -> None:
    for thing in list(_open):
        try:
            thing.close()
        except Exception as error:
            # At the process's end: the others are closed nevertheless, and its exit status stays.
            say(f"not closed in good order: {error}")


atexit.register(_close)
# A forked child (a loader of data) has its parent's sockets but no threads: it must not say BYE on its
# behalf.
os.register_at_fork(after_in_child=_open.clear)
