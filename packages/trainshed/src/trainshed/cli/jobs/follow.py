"""Follows a job live: its views, its timeline and its lines as one stream, which goes on when the service was
away and is back.

Owns the threads that read. They wait for streams of the service; only the timeline is requested again at each
change. After the service was away, streams are opened again, and nothing is yielded twice.
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

from trainshed.cli.client import Client, Refused, Unreachable
from trainshed.cli.jobs.references import job_path
from trainshed.cli.jobs.views import JobView
from trainshed.wire.trainshed_v1 import record
from trainshed.wire.trainshed_v1.timeline import LogLine as Line
from trainshed.wire.trainshed_v1.timeline import Timeline, TimelineEntry

Update = JobView | Line | TimelineEntry

_AHEAD = 10_000
"""Maximum updates that wait to be shown. If a program is faster than the terminal, further lines stay in the
service."""


_SAID_IN_THE_LOG = frozenset({"notice", "warning", "building"})
"""Kinds of timeline entries that the log has as well; they are left out if the log is read."""


T = TypeVar("T")
U = TypeVar("U")

PATIENCE = 60.0
"""Seconds that a follower waits for the service to be back."""

_PAUSE = 0.25
"""Seconds between two attempts to reach it."""

_STEADY = 1.0
"""Seconds for which a stream without updates has to last to show that the service is back: one that is about
to end may still accept streams."""

_decode_lines = msgspec.json.Decoder(Line).decode_lines

_MOST_PLACES = 500
"""Replicas whose last seen line a new stream is told of. Lines of others come again, and `SeenLines` drops
them."""


Stream = AbstractContextManager[Iterable[U]]
"""An open stream: iterating it yields its parts as they come, leaving it closes it."""


class _Ended:
    """Says that one of the readers has come to its end."""


class Patience:
    """Waits for a service that is away, for all streams of one follower: says so once, and gives up after
    `PATIENCE` seconds. Thread-safe.

    `again`: the command that the user can run to go on after that.
    """

    def __init__(self, client: Client, uid: str, again: str) -> None:
        self._client = client
        self._uid = uid
        self._again = again
        self._lock = threading.Lock()
        self._since: float | None = None
        #: When the user was last told; `_since` is when the service went away, None = it is there.
        self._said = -math.inf

    def outlast(
        self, opened: Callable[[], Stream[U]], read: Callable[[U], Iterator[T]]
    ) -> Iterator[T]:
        """Yield what `read` makes of each part of a stream, until the job is over. `opened` is called again
        when the stream has ended or broken off; `read` has to leave out what it was given before. Raises
        Refused, Unreachable."""
        while True:
            began, progressed = None, False
            try:
                with opened() as answer:
                    began = time.monotonic()
                    for part in answer:
                        for update in read(part):
                            progressed = True
                            yield update
                if JobView.parse(self._client.get(job_path(self._uid))).state.is_final:
                    return
                cause = "The service ended the stream: it is shutting down."
            except Unreachable as failure:
                cause = failure.message
            if began is not None and (progressed or time.monotonic() - began > _STEADY):
                self._was_back(began)
            self._wait(cause, began)

    def _was_back(self, at: float) -> None:
        """Note that the service answered a stream that was opened at this time (monotonic). An absence that
        another stream has noticed since still counts."""
        with self._lock:
            if self._since is not None and at > self._since:
                self._since = None

    def _wait(self, cause: str, began: float | None) -> None:
        """Pause before the next attempt. `began`: when the stream that ended was opened; None = it was
        not."""
        now = time.monotonic()
        with self._lock:
            if self._since is None:
                self._since = now
                # A second stream may end right after the first one, before anybody has tried to reach the
                # service, or be seen to have ended only after that; the user is told once.
                known = began is not None and began <= self._said
                if not known and now - self._said > _PAUSE:
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
    """Recognises a view of a job that is the same as the last one: a new stream begins with the view with
    which the one before it ended."""

    def __init__(self) -> None:
        self._last: dict[str, Any] | None = None

    def fresh(self, view: dict[str, Any]) -> bool:
        """Whether a view differs from the last one. It becomes the last one."""
        fresh, self._last = view != self._last, view
        return fresh


@contextmanager
def log_stream(
    client: Client, path: str, **query: str | int | None
) -> Generator[Iterator[Sequence[Line]]]:
    """Open a stream of a log's lines, which yields them in batches as they come. Raises Refused, Unreachable.
    Iterating raises Unreachable."""
    with client.stream(path, **query) as answer:
        yield map(_lines_of, answer.blocks())


def _lines_of(block: bytes) -> Sequence[Line]:
    try:
        return _decode_lines(block)
    except msgspec.MsgspecError as fault:
        raise Unreachable(f"What came is no line of a log: {fault}.") from None


class SeenLines:
    """The lines of a job that a follower has seen: for each replica, the last one."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}
        self._first = ""

    def fresh(self, lines: Sequence[Line]) -> list[Line]:
        """Return the lines that were not seen yet; they count as seen from now on."""
        fresh: list[Line] = []
        for line in lines:
            place = (line.attempt, line.n)
            if place > self._last.get(line.replica, (-1, -1)):
                self._last[line.replica] = place
                fresh.append(line)
        self._first = self._first or (fresh[0].at if fresh else "")
        return fresh

    def query(self, bounded: bool) -> dict[str, Any]:
        """Return the parameters with which a stream goes on behind the seen lines; {} = none was seen yet.
        `bounded`: the first stream did not begin at the beginning of the log."""
        if not self._last:
            return {}
        places = [f"{replica}/{attempt}/{n}" for replica, (attempt, n) in self._last.items()]
        # Of a replica without a seen line nothing may come that is older than the beginning of the tail.
        return {"after": ",".join(places[:_MOST_PLACES]), "since": self._first if bounded else None}


def follow(client: Client, uid: str, patience: Patience, *, lines: bool = True) -> Iterator[Update]:
    """Yield updates from the job's beginning until it is over and all were yielded.

    An entry of the timeline comes before the view of the job that it led to. `lines`: with the lines of the
    log. `patience`: waits for a service that is away. Raises Refused, Unreachable.
    """
    updates: queue.Queue[Update | _Ended | Exception] = queue.Queue(_AHEAD)
    passed_over = _SAID_IN_THE_LOG if lines else frozenset[str]()
    readers: list[Callable[[], Iterator[Update]]] = [
        lambda: _views(client, uid, passed_over, patience)
    ]
    if lines:
        readers.append(lambda: _lines(client, uid, patience))
    for read in readers:
        # Daemon threads: a caller that stops iterating does not wait until the job is over.
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
        # Raised again in the thread that iterates.
        updates.put(failure)
    else:
        updates.put(_Ended())


def _views(
    client: Client, uid: str, passed_over: frozenset[str], patience: Patience
) -> Iterator[Update]:
    own = below = Entries(client, uid)
    views = ViewChanges()

    def updates(view: dict[str, Any]) -> Iterator[Update]:
        nonlocal below
        job = JobView.parse(view)
        if job.child and job.child.tuning:
            # A pipeline's own timeline has no entries about its trials.
            below = below if below is not own else Entries(client, job.child.uid)
            yield from (entry for entry in below.fresh() if entry.kind.startswith("trial_"))
        yield from (entry for entry in own.fresh() if entry.kind not in passed_over)
        if views.fresh(view):
            yield job

    return patience.outlast(lambda: client.stream(job_path(uid, "/watch")), updates)


class Entries:
    """Reads a job's timeline step by step."""

    def __init__(self, client: Client, uid: str) -> None:
        self._client = client
        self._path = job_path(uid, "/timeline")
        self._count = 0

    def fresh(self) -> list[TimelineEntry]:
        """Return the entries that were not returned yet; [] if the job was deleted. Raises Refused,
        Unreachable."""
        try:
            answer = self._client.get(self._path, skip=self._count or None)
        except Refused as refused:
            if refused.status != 404:
                raise
            return []
        timeline = record.read(answer, Timeline)
        entries = timeline.entries[max(0, self._count - timeline.skipped) :]
        self._count += len(entries)
        return list(entries)


def _lines(client: Client, uid: str, patience: Patience) -> Iterator[Update]:
    seen = SeenLines()

    def opened() -> Stream[Sequence[Line]]:
        return log_stream(client, job_path(uid, "/logs"), follow="true", **seen.query(False))

    def read(lines: Sequence[Line]) -> Iterator[Update]:
        return iter(seen.fresh(lines))

    return patience.outlast(opened, read)
