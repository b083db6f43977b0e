"""Follows a job until it finishes: after each notification from the service, reads the job's timeline and
log. It continues across restarts of the service, and yields nothing twice."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import click
import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from trainshed.cli.client import Client, RequestError, Unreachable
from trainshed.cli.jobs.references import job_path
from trainshed.cli.jobs.views import JobView
from trainshed.wire.trainshed_v1 import record
from trainshed.wire.trainshed_v1.timeline import LogLine as Line
from trainshed.wire.trainshed_v1.timeline import Timeline, TimelineEntry

Update = JobView | TimelineEntry | Sequence[Line]

_KINDS_IN_LOG = frozenset({"notice", "warning"})
"""Kinds of timeline entries that the log also contains. `follow` omits these entries if it reads the log."""
OUTAGE_TIMEOUT = 60.0
"""Maximum seconds to wait for a service that does not respond."""
_RETRY_INTERVAL = 0.1
"""Seconds before the next request to a service that does not respond."""
_MAX_POSITIONS = 500
"""Maximum number of replicas whose last line number is sent to the service. The service may send old lines of
other replicas again. `Lines` drops such lines."""

_decode_lines = msgspec.json.Decoder(Line).decode_lines


class OutageWaiter:
    """Waits for a service that does not respond. It prints one message, and raises an error after
    `OUTAGE_TIMEOUT` seconds. `again`: the command with which the user can continue later."""

    def __init__(self, client: Client, again: str) -> None:
        self._client = client
        self._again = again
        #: Start of the outage, or None while the service responds. `tolerate` sets None only after its
        #: context. A caller that reads a stream in the context must set None itself, because the stream lasts
        #: as long as the job.
        self.since: float | None = None

    @contextmanager
    def tolerate(self) -> Generator[None]:
        """Handle a service that does not respond within this context: wait a moment, so that the caller can
        repeat its request. Raises Unreachable after the timeout."""
        try:
            yield
            self.since = None
        except Unreachable as failure:
            self._wait(failure.message)

    def _wait(self, cause: str) -> None:
        if self.since is None:
            self.since = time.monotonic()
            away = "The service does not answer; the job continues."
            click.echo(f"{away} Waiting {OUTAGE_TIMEOUT:g} s for the service ...", err=True)
        try:
            self._client.update_address()
        except Unreachable as failure:
            cause = failure.message
        if time.monotonic() > self.since + OUTAGE_TIMEOUT:
            raise Unreachable(
                f"{cause}\nThe service did not return within {OUTAGE_TIMEOUT:g} s. The job continues. When "
                f"the service is back: {self._again}"
            )


class Lines:
    """Reads new lines of a job's log. `replica`: read only the lines of this replica; None = the lines of all
    replicas. `first`: the parameters `tail` and `since` of the first request, which limit the old lines."""

    def __init__(
        self, client: Client, target: str, replica: str | None = None, **first: str | int | None
    ) -> None:
        self._client = client
        self._path = job_path(target, "/logs")
        self._replica = replica
        self._first = first
        #: The attempt and the number of the last yielded line, by replica. `_began` is the time of the first
        #: yielded line of all replicas.
        self._last: dict[str, tuple[int, int]] = {}
        self._began = ""

    def read_new(self) -> Iterator[Sequence[Line]]:
        """Yield lines that were not yielded before, as they arrive. Raises RequestError, Unreachable."""
        query = self._first
        if self._last:
            positions = [f"{replica}/{attempt}/{n}" for replica, (attempt, n) in self._last.items()]
            # `after` has no entry for replicas without a yielded line. If the first request limited the old
            # lines, `since` excludes old lines of these replicas too.
            since = self._began if any(self._first.values()) else None
            query = {"after": ",".join(positions[-_MAX_POSITIONS:]), "since": since}
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
        raise Unreachable(
            f"The service sent an invalid log line: {fault}. Install the version of the service on this "
            "machine too."
        ) from None


class Entries:
    """Reads new entries of a job's timeline."""

    def __init__(self, client: Client, uid: str) -> None:
        self._client = client
        self._path = job_path(uid, "/timeline")
        self._count = 0

    def read_new(self) -> list[TimelineEntry]:
        """Return the new entries, or [] if the job was deleted. Raises RequestError, Unreachable."""
        try:
            answer = self._client.get(self._path, skip=self._count or None)
        except RequestError as refused:
            if refused.status != 404:
                raise
            return []
        timeline = record.read(answer, Timeline)
        entries = timeline.entries[max(0, self._count - timeline.skipped) :]
        self._count += len(entries)
        return list(entries)


def follow(client: Client, uid: str, again: str, lines: Lines | None = None) -> Iterator[Update]:
    """Yield the updates of a job, from its creation until it has finished.

    The last update is a description. A timeline entry precedes the description that contains its effect.
    Changes of continuous values, such as progress, cause no update. Raises RequestError, Unreachable.

    Args:
        again: the command with which the user can continue after an outage of the service
        lines: the reader of the job's log; None = do not read the log
    """
    waiter = OutageWaiter(client, again)
    own, below = Entries(client, uid), None
    job, shown = JobView(), JobView()
    while not shown.state.is_final:
        began = time.monotonic()
        with waiter.tolerate(), client.stream(job_path(uid, "/watch")) as news:
            for block in news.blocks():
                # A block contains the notifications that arrived together. Handle them together. A blank line
                # announces timeline entries or log lines. Read the job's description before the entries and
                # lines: then none of them is missing when the description of a finished job is yielded.
                for description in news.values(block):
                    job = JobView.parse(description)
                for entry in own.read_new():
                    if lines is None or entry.kind not in _KINDS_IN_LOG:
                        yield entry
                if job.child and job.child.tuning:
                    # A pipeline's own timeline has no entries about trials. Read them from the timeline of
                    # its tuning job.
                    below = below or Entries(client, job.child.uid)
                    yield from (entry for entry in below.read_new() if entry.kind.startswith("trial_"))
                yield from lines.read_new() if lines is not None else ()
                # The outage ends only after a stream has lasted for a second, because a service whose streams
                # break off immediately is not available.
                if time.monotonic() > began + 1:
                    waiter.since = None
                before = shown
                shown = replace(job, progress=UNSET, tensorboard_uri=UNSET, resource=UNSET)
                if shown != before:
                    yield shown
        if not shown.state.is_final:
            time.sleep(_RETRY_INTERVAL)
