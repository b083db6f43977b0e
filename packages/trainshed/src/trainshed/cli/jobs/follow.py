"""Follows a job: reads its timeline and its log on whenever the service says that something has happened,
until it is over, also across restarts of the service, and yields nothing twice."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import click
import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from trainshed.cli.client import Client, Refused, Unreachable
from trainshed.cli.jobs.references import job_path
from trainshed.cli.jobs.views import JobView
from trainshed.wire.trainshed_v1 import record
from trainshed.wire.trainshed_v1.timeline import LogLine as Line
from trainshed.wire.trainshed_v1.timeline import Timeline, TimelineEntry

Update = JobView | TimelineEntry | Sequence[Line]

_SAID_IN_THE_LOG = frozenset({"notice", "warning"})
"""Kinds of timeline entries that the log has as well; they are left out if the log is read."""
PATIENCE = 60.0
"""Seconds that a follower waits for the service to be back."""
_PAUSE = 0.1
"""Seconds before a service that was away is asked again."""
_MOST_PLACES = 500
"""Replicas whose last seen line the service is told of. Lines of others come again, and are dropped."""

_decode_lines = msgspec.json.Decoder(Line).decode_lines


class Patience:
    """Waits for a service that is away: says so once, and gives up after `PATIENCE` seconds.

    `again`: the command that the user can run to go on after that.
    """

    def __init__(self, client: Client, again: str) -> None:
        self._client = client
        self._again = again
        #: When the service was found to be away; None = it is there, which whoever reads a stream notes.
        self.since: float | None = None

    @contextmanager
    def outlasted(self) -> Generator[None]:
        """Within it a service that does not answer is waited for a moment; what was asked there is to be
        asked again. Raises Unreachable in the end."""
        try:
            yield
            self.since = None
        except Unreachable as failure:
            self._wait(failure.message)

    def _wait(self, cause: str) -> None:
        if self.since is None:
            self.since = time.monotonic()
            away = "The service does not answer any more; the job goes on."
            click.echo(f"{away} Waiting {PATIENCE:g} s for the service ...", err=True)
        try:
            self._client.look_again()
        except Unreachable as failure:
            cause = failure.message
        if time.monotonic() > self.since + PATIENCE:
            raise Unreachable(
                f"{cause}\nIt was waited for, for {PATIENCE:g} s. The job goes on; when the service is "
                f"back: {self._again}"
            )


class Lines:
    """Reads the log of a job on. `replica`: of this one alone; `first`: where it begins, by `tail` and
    `since`."""

    def __init__(
        self, client: Client, target: str, replica: str | None = None, **first: str | int | None
    ) -> None:
        self._client = client
        self._path = job_path(target, "/logs")
        self._replica = replica
        self._first = first
        #: The last seen line of each replica, and the time of the very first one.
        self._last: dict[str, tuple[int, int]] = {}
        self._began = ""

    def fresh(self) -> Iterator[Sequence[Line]]:
        """Yield the lines that were not seen yet, as they come. Raises Refused, Unreachable."""
        query = self._first
        if self._last:
            places = [f"{replica}/{attempt}/{n}" for replica, (attempt, n) in self._last.items()]
            # Of a replica without a seen line nothing may come that is older than the beginning.
            since = self._began if any(self._first.values()) else None
            query = {"after": ",".join(places[-_MOST_PLACES:]), "since": since}
        with self._client.stream(self._path, replica=self._replica, **query) as answer:
            for block in answer.blocks():
                if lines := [line for line in _lines_of(block) if self._is_fresh(line)]:
                    yield lines

    def _is_fresh(self, line: Line) -> bool:
        place = (line.attempt, line.n)
        if is_fresh := place > self._last.get(line.replica, (-1, -1)):
            self._last[line.replica] = place
            self._began = self._began or line.at
        return is_fresh


def _lines_of(block: bytes) -> Sequence[Line]:
    try:
        return _decode_lines(block)
    except msgspec.MsgspecError as fault:
        raise Unreachable(f"What came is no line of a log: {fault}.") from None


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


def follow(client: Client, uid: str, again: str, lines: Lines | None = None) -> Iterator[Update]:
    """Yield updates from the job's beginning until it is over and all were yielded; the last is a
    description.

    An entry of the timeline comes before the description of what it led to, which leaves out what changes by
    itself, as progress does. `again`: see `Patience`; `lines`: those of the log, if they are wanted. Raises
    Refused, Unreachable.
    """
    patience = Patience(client, again)
    own, below = Entries(client, uid), None
    job, shown = JobView(), JobView()
    while not shown.state.is_final:
        began = time.monotonic()
        with patience.outlasted(), client.stream(job_path(uid, "/watch")) as news:
            for block in news.blocks():
                # What has come meanwhile is looked at together; blank lines say that there is more to read.
                # Described first, so that nothing is missing behind that of a job that is over.
                for description in news.values(block):
                    job = JobView.parse(description)
                for entry in own.fresh():
                    if lines is None or entry.kind not in _SAID_IN_THE_LOG:
                        yield entry
                if job.child and job.child.tuning:
                    # A pipeline's own timeline has no entries about its trials.
                    below = below or Entries(client, job.child.uid)
                    yield from (entry for entry in below.fresh() if entry.kind.startswith("trial_"))
                yield from lines.fresh() if lines is not None else ()
                # One that breaks off at once each time is not there.
                if time.monotonic() > began + 1:
                    patience.since = None
                before = shown
                shown = replace(job, progress=UNSET, tensorboard_uri=UNSET, resource=UNSET)
                if shown != before:
                    yield shown
        if not shown.state.is_final:
            time.sleep(_PAUSE)
