"""Everything that happens to a job, as it happens: its views, its story and its lines in one stream.

Owns the threads that read. The service wakes them; nothing is asked for again and again but the story, once
per change.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from trainshed.cli.client import Answer, Client
from trainshed.cli.outlasting import Changed, Patience, Seen
from trainshed.cli.references import job_path
from trainshed.cli.views import JobView, LogLine, TimelineView

Update = JobView | LogLine | TimelineView

_AHEAD = 10_000
"""Updates that may wait to be shown; a program that is faster than the terminal waits in the service."""


_SAID_IN_THE_LOG = frozenset({"notice", "warning", "building"})
"""Entries of the story that the log has as well: who reads the log need not read them twice."""


class _Ended:
    """One of the readers has come to its end."""


def follow(
    client: Client, uid: str, *, lines: bool = True, patience: Patience | None = None
) -> Iterator[Update]:
    """Updates from the job's beginning until it is over and all was told.

    An entry of the story comes before the view of the job that it led to. `patience`: how the end of the service is borne,
    None = not at all. Raises Refused, Unreachable.
    """
    updates: queue.Queue[Update | _Ended | Exception] = queue.Queue(_AHEAD)
    passed_over = _SAID_IN_THE_LOG if lines else frozenset[str]()
    readers: list[Callable[[], Iterator[Update]]] = [
        lambda: _views(client, uid, passed_over, patience)
    ]
    if lines:
        readers.append(lambda: _lines(client, uid, patience))
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


def _views(
    client: Client, uid: str, passed_over: frozenset[str], patience: Patience | None
) -> Iterator[Update]:
    own = below = _Story(client, uid)
    views = Changed()

    def read(view: dict[str, Any]) -> Iterator[Update]:
        nonlocal below
        found = JobView.parse(view)
        if found.child and found.child.tuning:
            # A pipeline says nothing of its trials itself.
            below = below if below is not own else _Story(client, found.child.uid)
            yield from (entry for entry in below.fresh() if entry.kind.startswith("trial_"))
        yield from (entry for entry in own.fresh() if entry.kind not in passed_over)
        if patience is None or views.fresh(view):
            yield found

    return _told(lambda: client.stream(job_path(uid, "/watch")), read, patience)


class _Story:
    """A job's story, entry by entry."""

    def __init__(self, client: Client, uid: str) -> None:
        self._client = client
        self._path = job_path(uid, "/timeline")
        self._told = 0

    def fresh(self) -> list[TimelineView]:
        """What was not told yet."""
        found: dict[str, Any] = self._client.get(self._path, skip=self._told or None)
        # An older service leaves nothing out.
        entries: list[dict[str, Any]] = found["entries"][self._told - found.get("skipped", 0) :]
        self._told += len(entries)
        return [TimelineView.parse(entry) for entry in entries]


def _lines(client: Client, uid: str, patience: Patience | None) -> Iterator[Update]:
    seen = Seen()

    def opened() -> Answer:
        return client.lines(job_path(uid, "/logs"), follow="true", **seen.query(None))

    def read(line: dict[str, Any]) -> Iterator[Update]:
        if seen.fresh(line):
            yield LogLine.parse(line)

    return _told(opened, read, patience)


def _told(
    opened: Callable[[], Answer],
    read: Callable[[dict[str, Any]], Iterator[Update]],
    patience: Patience | None,
) -> Iterator[Update]:
    if patience is not None:
        yield from patience.outlast(opened, read)
        return
    with opened() as answer:
        for found in answer:
            yield from read(found)
