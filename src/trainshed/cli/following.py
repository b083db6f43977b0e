"""Everything that happens to a job, as it happens: its views, its story and its lines in one stream.

Owns the threads that read. The service wakes them; nothing is asked for again and again but the story, once
per change.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from trainshed.cli.client import Client
from trainshed.cli.references import job_path
from trainshed.cli.views import JobView, LogLine, TimelineView

Update = JobView | LogLine | TimelineView

_AHEAD = 10_000
"""Updates that may wait to be shown; a program that is faster than the terminal waits in the service."""


_SAID_IN_THE_LOG = frozenset({"notice", "warning"})
"""Entries of the story that the primary's log begins with: who reads the log need not read them twice."""


class _Ended:
    """One of the readers has come to its end."""


def follow(client: Client, uid: str, *, lines: bool = True) -> Iterator[Update]:
    """Updates from the job's beginning until it is over and all was told.

    An entry of the story comes before the view of the job that it led to. Raises Refused, Unreachable.
    """
    updates: queue.Queue[Update | _Ended | Exception] = queue.Queue(_AHEAD)
    passed_over = _SAID_IN_THE_LOG if lines else frozenset[str]()
    readers: list[Callable[[], Iterator[Update]]] = [lambda: _views(client, uid, passed_over)]
    if lines:
        readers.append(lambda: _lines(client, uid))
    for read in readers:
        # Daemons: whoever stops listening need not wait for the job to be over.
        threading.Thread(target=_read, args=(read, updates), daemon=True).start()
    left = len(readers)
    while left:
        update = updates.get()
        if isinstance(update, Exception):
            raise update
        if isinstance(update, _Ended):
            left -= 1
        else:
            yield update


def _read(
    read: Callable[[], Iterator[Update]], updates: "queue.Queue[Update | _Ended | Exception]"
) -> None:
    try:
        for update in read():
            updates.put(update)
    except Exception as failure:
        # Raised again where the updates are taken.
        updates.put(failure)
    else:
        updates.put(_Ended())


def _views(client: Client, uid: str, passed_over: frozenset[str]) -> Iterator[Update]:
    told = told_below = 0
    with client.stream(job_path(uid, "/watch")) as views:
        for view in views:
            found = JobView.parse(view)
            if found.child and found.child.tuning:
                # A pipeline says nothing of its trials itself.
                below = _entries(client, found.child.uid)
                yield from (
                    entry for entry in below[told_below:] if entry.kind.startswith("trial_")
                )
                told_below = len(below)
            entries = _entries(client, uid)
            yield from (entry for entry in entries[told:] if entry.kind not in passed_over)
            told = len(entries)
            yield found


def _entries(client: Client, uid: str) -> list[TimelineView]:
    found: list[dict[str, Any]] = client.get(job_path(uid, "/timeline"))["entries"]
    return [TimelineView.parse(entry) for entry in found]


def _lines(client: Client, uid: str) -> Iterator[Update]:
    with client.stream(job_path(uid, "/logs"), follow="true") as lines:
        yield from map(LogLine.parse, lines)
