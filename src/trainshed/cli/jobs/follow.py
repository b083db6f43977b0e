"""Follows a job as it happens: its views, its timeline and its lines in one stream, also beyond the end of
its service.

Owns the threads that read. The service wakes them; nothing is asked for again and again but the timeline,
once per change. Streams are opened anew when the service is back, and nothing is told twice.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import click
import msgspec

from trainshed.cli.client import Client, Unreachable
from trainshed.cli.jobs.references import job_path
from trainshed.cli.jobs.views import JobView, LogLine, TimelineView
from trainshed.wire.trainshed_v1 import record
from trainshed.wire.trainshed_v1.timeline import LogLine as Line
from trainshed.wire.trainshed_v1.timeline import Timeline

Update = JobView | LogLine | TimelineView

_AHEAD = 10_000
"""Updates that may wait to be shown; a program that is faster than the terminal waits in the service."""


_SAID_IN_THE_LOG = frozenset({"notice", "warning", "building"})
"""Entries of the timeline that the log has as well: who reads the log need not read them twice."""


T = TypeVar("T")
U = TypeVar("U")

PATIENCE = 60.0
"""Seconds that a follower waits for a service to be back."""

_PAUSE = 0.25
"""Seconds between two looks whether it is."""

_STEADY = 1.0
"""Seconds after which a stream has been one: a service that is about to end may still open some."""

_decode_lines = msgspec.json.Decoder(Line).decode_lines

_MOST_PLACES = 500
"""Writers of which a new stream is told what was seen; lines of others come again, and are passed over
here."""


Stream = AbstractContextManager[Iterable[U]]
"""Parts that come one after the other, until it is closed."""


class _Ended:
    """One of the readers has come to its end."""


class Patience:
    """How a follower, with all its streams, bears that the service is away: says so once, and gives up in the
    end.

    `again`: the command that goes on where this one gave up.
    """

    def __init__(self, client: Client, uid: str, again: str) -> None:
        self._client = client
        self._uid = uid
        self._again = again
        self._lock = threading.Lock()
        self._since: float | None = None
        #: When it was said last.
        self._said = -math.inf

    def outlast(
        self,
        opened: Callable[[], Stream[U]],
        read: Callable[[U], Iterator[T]],
    ) -> Iterator[T]:
        """What `read` makes of each part of a stream, until the job is over. `opened` may be called again,
        and its stream then begins anew; `read` passes over what it was given before. Raises Refused,
        Unreachable."""
        while True:
            began, progressed = None, False
            try:
                with opened() as answer:
                    began = time.monotonic()
                    for part in answer:
                        for update in read(part):
                            progressed = True
                            yield update
                if self._is_over():
                    return
                cause = "The service ended the stream: it is shutting down."
            except Unreachable as failure:
                cause = failure.message
            if began is not None and (progressed or time.monotonic() - began > _STEADY):
                self._was_back(began)
            self._wait(cause)

    def _is_over(self) -> bool:
        return JobView.parse(self._client.get(job_path(self._uid))).state.is_final

    def _was_back(self, at: float) -> None:
        """A stream that was opened then has told something: it is forgotten that the service was away before,
        and not what another stream has said since."""
        with self._lock:
            if self._since is not None and at > self._since:
                self._since = None

    def _wait(self, cause: str) -> None:
        now = time.monotonic()
        with self._lock:
            if self._since is None:
                self._since = now
                # One stream may be opened when another one has just ended, and end as well: nobody has looked
                # for the service in between.
                if now - self._said > _PAUSE:
                    click.echo(
                        f"The service does not answer any more; the job goes on. Waiting {PATIENCE:g} s for "
                        "the service ...",
                        err=True,
                    )
                self._said = now
            left = self._since + PATIENCE - now
        try:
            self._client.look_again()
        except Unreachable as failure:
            cause = failure.message
        if left <= 0:
            raise Unreachable(
                f"{cause}\n"
                f"It was waited for, for {PATIENCE:g} s. The job goes on; when the service is back: "
                f"{self._again}"
            )
        time.sleep(min(_PAUSE, left))


class ViewChanges:
    """Tells views of a job from those that were told already: a new stream begins with what the last one
    ended with."""

    def __init__(self) -> None:
        self._last: dict[str, Any] | None = None

    def fresh(self, view: dict[str, Any]) -> bool:
        """Whether a view says anything new; it is told then."""
        fresh, self._last = view != self._last, view
        return fresh


@contextmanager
def log_stream(
    client: Client, path: str, **query: str | int | None
) -> Generator[Iterator[Sequence[Line]]]:
    """The lines of a log as they come: as many at once as are there. Raises Refused, Unreachable; so does
    iterating."""
    with client.stream(path, **query) as answer:
        yield map(_lines_of, answer.blocks())


def _lines_of(block: bytes) -> Sequence[Line]:
    try:
        return _decode_lines(block)
    except msgspec.MsgspecError as fault:
        raise Unreachable(f"What came is no line of a log: {fault}.") from None


class SeenLines:
    """The lines of a job that a follower has seen: of every writer up to where."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, str], tuple[int, int]] = {}
        self._first = ""

    def fresh(self, lines: Sequence[Line]) -> list[Line]:
        """Those of them that are new; they are seen then."""
        fresh: list[Line] = []
        writer, place = (-1, ""), (-1, -1)
        for line in lines:
            if line.replica != writer[1] or (line.trial or 0) != writer[0]:
                self._reached(writer, place)
                writer = (line.trial or 0, line.replica)
                place = self._last.get(writer, (-1, -1))
            if line.attempt > place[0] or (line.n > place[1] and line.attempt == place[0]):
                place = (line.attempt, line.n)
                fresh.append(line)
        self._reached(writer, place)
        self._first = self._first or (fresh[0].at if fresh else "")
        return fresh

    def _reached(self, writer: tuple[int, str], place: tuple[int, int]) -> None:
        """Those that wrote last stand last."""
        if place[0] >= 0:
            self._last.pop(writer, None)
            self._last[writer] = place

    def query(self, bounded: bool) -> dict[str, Any]:
        """Where a stream is to go on; {} = nothing was seen yet. `bounded`: it did not begin at the job's
        beginning."""
        if not self._last:
            return {}
        places = [
            f"{trial}/{replica}/{attempt}/{n}"
            for (trial, replica), (attempt, n) in [*self._last.items()][-_MOST_PLACES:]
        ]
        # Who has said nothing since the tail began must not begin before it.
        return {"after": ",".join(places), "since": self._first if bounded else None}


def follow(
    client: Client, uid: str, *, lines: bool = True, patience: Patience | None = None
) -> Iterator[Update]:
    """Updates from the job's beginning until it is over and all was told.

    An entry of the timeline comes before the view of the job that it led to. `patience`: how the end of the
    service is borne, None = not at all. Raises Refused, Unreachable.
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
    own = below = _Entries(client, uid)
    views = ViewChanges()

    def updates(view: dict[str, Any]) -> Iterator[Update]:
        nonlocal below
        job = JobView.parse(view)
        if job.child and job.child.tuning:
            # A pipeline says nothing of its trials itself.
            below = below if below is not own else _Entries(client, job.child.uid)
            yield from (entry for entry in below.fresh() if entry.kind.startswith("trial_"))
        yield from (entry for entry in own.fresh() if entry.kind not in passed_over)
        if patience is None or views.fresh(view):
            yield job

    return _told(lambda: client.stream(job_path(uid, "/watch")), updates, patience)


class _Entries:
    """A job's timeline, entry by entry."""

    def __init__(self, client: Client, uid: str) -> None:
        self._client = client
        self._path = job_path(uid, "/timeline")
        self._told = 0

    def fresh(self) -> list[TimelineView]:
        """What was not told yet."""
        timeline = record.read(self._client.get(self._path, skip=self._told or None), Timeline)
        # An older service leaves nothing out.
        entries = timeline.entries[self._told - timeline.skipped :]
        self._told += len(entries)
        return list(map(TimelineView.of, entries))


def _lines(client: Client, uid: str, patience: Patience | None) -> Iterator[Update]:
    seen = SeenLines()

    def opened() -> Stream[Sequence[Line]]:
        return log_stream(client, job_path(uid, "/logs"), follow="true", **seen.query(False))

    def read(lines: Sequence[Line]) -> Iterator[Update]:
        return map(LogLine.of, seen.fresh(lines))

    return _told(opened, read, patience)


def _told(
    opened: Callable[[], Stream[U]],
    read: Callable[[U], Iterator[Update]],
    patience: Patience | None,
) -> Iterator[Update]:
    if patience is not None:
        yield from patience.outlast(opened, read)
        return
    with opened() as answer:
        for part in answer:
            yield from read(part)
