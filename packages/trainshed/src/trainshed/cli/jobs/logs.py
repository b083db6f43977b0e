"""`trainshed jobs logs`: prints a job's lines, and follows them until the job is over, also across restarts
of the service."""

import contextlib
import re
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

import click

from trainshed.cli.client import Client, Refused, Unreachable
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.follow import Entries, Patience, SeenLines, log_stream
from trainshed.cli.jobs.log_text import LineTexts
from trainshed.cli.jobs.references import find_job, job_path, takes_job
from trainshed.cli.jobs.views import JobView, TimelineView
from trainshed.cli.output import output_format, print_data, until_reader_leaves
from trainshed.cli.text.moments import rfc3339
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.record import plain
from trainshed.wire.trainshed_v1.timeline import LogLine as Line

SEVERITIES = (
    "DEFAULT",
    "DEBUG",
    "INFO",
    "NOTICE",
    "WARNING",
    "ERROR",
    "CRITICAL",
    "ALERT",
    "EMERGENCY",
)
"""The public names of severities, ascending."""

_AGO = re.compile(r"(\d{1,9})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SAID_IN_THE_LOG = frozenset({"notice", "warning", "building", "created", "log_deleted"})
"""Kinds of entries that are left out because they tell nothing new; most stand in the log as well."""
_PASSED_OVER = frozenset({"waiting", "delayed", "admitted", "preparing", "launching", "running"})
"""Kinds of entries that lead to a start; only the start itself is shown."""


@dataclass(frozen=True, slots=True)
class LogChoice:
    """What of a job's log is shown. A field that is not set leaves nothing out."""

    #: In ns since the epoch; 0 = not set. The service chooses lines by it.
    since: Nanos = 0
    #: The lowest severity; "" = any.
    severity: str = ""
    #: Only this replica; "" = not set. The service chooses lines by it.
    replica: str = ""
    #: Whether entries of the timeline stand between the lines.
    events: bool = True

    @property
    def counts_tail(self) -> bool:
        """Whether the last N lines have to be counted here: the service counts them among all lines."""
        return bool(self.severity or self.since)

    def wants(self, line: Line) -> bool:
        """Whether a line is shown."""
        return not self.severity or _rank(line.severity) >= _rank(self.severity)

    def wants_event(self, entry: TimelineView) -> bool:
        """Whether an entry of the timeline is shown between the lines."""
        if not self.events or self.severity:
            return False
        if entry.kind in _SAID_IN_THE_LOG or entry.kind in _PASSED_OVER:
            return False
        return (not self.replica or entry.replica == self.replica) and entry.at >= self.since

    def between(self, entries: Iterable[TimelineView], *, tail: bool) -> "Between":
        """Return the entries that are shown between lines. `tail`: leave out those before the first line."""
        return Between(filter(self.wants_event, entries), tail=tail)


class Between:
    """Entries of a timeline, which are taken out in order as the lines around them are printed."""

    def __init__(self, entries: Iterable[TimelineView], *, tail: bool) -> None:
        ordered = sorted(entries, key=lambda entry: entry.at)
        # Times in this form can be compared as texts, so the times of lines need not be parsed.
        self._left = deque((rfc3339(entry.at), entry) for entry in ordered)
        self._leaves_out = tail

    def split(
        self, lines: Sequence[Line]
    ) -> Iterator[tuple[Sequence[TimelineView], Sequence[Line]]]:
        """Yield (entries, lines): entries, and the lines that follow them."""
        start = 0
        while start < len(lines):
            due = self._before(lines[start].at)
            end = len(lines)
            if self._left:
                end = bisect_right(lines, self._left[0][0], lo=start, key=_at)
            yield () if self._leaves_out else due, lines[start:end]
            self._leaves_out = False
            start = end

    def rest(self) -> Sequence[TimelineView]:
        """Return the entries after the last line."""
        return () if self._leaves_out else [entry for _, entry in self._left]

    def _before(self, at: str) -> list[TimelineView]:
        due: list[TimelineView] = []
        while self._left and self._left[0][0] < at:
            due.append(self._left.popleft()[1])
        return due


def _at(line: Line) -> str:
    return line.at


def moment(text: str, now: Nanos, option: str, zone: tzinfo | None = None) -> int:
    """Convert `10m` or `2h` (ago), or a date and time, to nanoseconds since the epoch; "" = 0. A date and
    time without a zone is in `zone`, None = this machine's. Raises click.UsageError."""
    if not text:
        return 0
    if match := _AGO.fullmatch(text):
        return now - int(match[1]) * _UNITS[match[2]] * 10**9
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"{option}: write how long ago (30s, 10m, 2h, 1d) or a moment (2026-11-20T06:05, with Z for"
            f" UTC), not {text!r}."
        ) from None
    # `astimezone` takes a time without a zone for one of this machine's zone.
    at = at.replace(tzinfo=zone) if at.tzinfo is None and zone else at.astimezone()
    return round(at.timestamp() * 10**6) * 1000


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0


_LAST_ENTRIES = 5.0
"""Seconds to wait for the last entries of the job's timeline after its last line was printed."""


@click.command()
@takes_job
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Follow until the job ends, also across service restarts.",
)
@click.option(
    "--trial", type=click.IntRange(min=1), metavar="N", help="Show only this trial of a tuning job."
)
@click.option("--replica", metavar="REPLICA", help="Show only this replica, such as workerpool1-0.")
@click.option(
    "--tail", type=click.IntRange(min=1), metavar="N", help="Start with the last N lines."
)
@click.option("--timestamps", is_flag=True, help="Print the moment of each line.")
@click.option("--since", default="", metavar="TIME", help="Start at a moment, or 10m ago.")
@click.option(
    "--severity",
    type=click.Choice([name.lower() for name in SEVERITIES], case_sensitive=False),
    help="Show only lines of this severity or above.",
)
@click.option(
    "--events/--no-events",
    default=True,
    help="Show starts, exits and verdicts between the lines, or not.",
)
@output_format("text", "Output as text, or one JSON object or YAML document per line.")
@takes_endpoint
@click.pass_obj
def command(
    session: Session, endpoint: Endpoint, *, job: str, follow: bool, form: str, **options: Any
) -> None:
    """Print the log lines of a job in order of time.

    Between them stand starts, exits and verdicts of its replicas, so that the end of a failed job's log says
    why. Of a tuning job those of all its trials. JSON has the lines alone.
    """
    client = endpoint.client(raw=form == "json")
    view = JobView.parse(find_job(client, job, endpoint.project))
    if view.log_deleted:
        click.echo(view.log_deleted, err=True)
    choice = LogChoice(
        since=moment(options["since"], session.now(), "--since"),
        severity=(options["severity"] or "").upper(),
        replica=options["replica"] or "",
        events=options["events"] and form == "text" and view.program.tuning is None,
    )
    tail: int | None = options["tail"]
    which = {"trial": options["trial"], "replica": options["replica"]}
    shown = _Shown(form, view, timestamps=options["timestamps"])
    seen = SeenLines()
    timeline = Entries(client, view.uid) if choice.events else None
    first = {
        "tail": None if choice.counts_tail else tail,
        "since": rfc3339(choice.since) if choice.since else None,
    }
    following = _Following(choice, seen, timeline, which, first)
    try:
        if timeline or choice.counts_tail or not follow:
            # Print what there is in order of time; then follow from there.
            with contextlib.suppress(*([Unreachable] if follow else [])):
                _print(client, view, following, shown, tail)
        if not follow or (timeline and view.state.is_final):
            return
        patience = Patience(client, view.uid, f"trainshed jobs logs -f {view.id}")
        with until_reader_leaves():
            _follow(client, view, patience, following, shown)
    except KeyboardInterrupt:
        # No message: ending to follow is no error, and the job goes on.
        raise SystemExit(130) from None


def _print(
    client: Client, job: JobView, following: "_Following", shown: "_Shown", tail: int | None
) -> None:
    """Print what there is of a job's log. Raises Refused, Unreachable."""
    choice, timeline = following.choice, following.timeline
    entries = choice.between(timeline.fresh() if timeline else (), tail=bool(tail))
    last = deque[Line](maxlen=tail) if tail and choice.counts_tail else None
    with log_stream(
        client, job_path(job.uid, "/logs"), **following.which, **following.first
    ) as answer:
        for lines in answer:
            wanted = following.wanted(lines)
            if last is None:
                shown.lines(wanted, entries)
            else:
                last.extend(wanted)
    shown.lines(list(last or ()), entries)
    shown.entries(entries.rest())


@dataclass(frozen=True, slots=True)
class _Following:
    """What a follower shows, and what it has seen."""

    choice: LogChoice
    seen: SeenLines
    #: The job's timeline; None = its entries are not shown.
    timeline: Entries | None
    #: Parameters of each stream: the trial and the replica whose lines are wanted.
    which: Mapping[str, str | int | None]
    #: Parameters of a stream that is opened before any line was seen: where it begins.
    first: Mapping[str, str | int | None]

    def wanted(self, lines: Sequence[Line]) -> Sequence[Line]:
        """Return the lines that are new and to be shown; all of them count as seen from now on."""
        fresh = self.seen.fresh(lines)
        return list(filter(self.choice.wants, fresh)) if self.choice.severity else fresh


class _Shown:
    """Prints lines and entries of the timeline. Thread-safe."""

    def __init__(self, form: str, job: JobView, *, timestamps: bool) -> None:
        self._form = form
        self._texts = LineTexts(job, timestamps=timestamps)
        self._lock = threading.Lock()

    def lines(self, lines: Sequence[Line], entries: Between) -> None:
        """Print lines, and the entries that stand between them."""
        if self._form == "json":
            for line in lines:
                print_data(plain(line), stream=True)
            return
        texts = [
            text
            for due, between in entries.split(lines)
            for text in (*map(self._texts.entry, due), *self._texts.of(between))
        ]
        if texts:
            with self._lock:
                click.echo("".join(texts), nl=False)

    def entries(self, entries: Iterable[TimelineView]) -> None:
        """Print entries without lines."""
        for entry in entries:
            with self._lock:
                click.echo(self._texts.entry(entry), nl=False)


def _follow(
    client: Client, job: JobView, patience: Patience, following: _Following, shown: _Shown
) -> None:
    """Print lines and entries as they come until the job is over. Raises Refused, Unreachable."""
    choice, timeline = following.choice, following.timeline
    watcher = None
    if timeline is not None:
        watcher = threading.Thread(target=_tell, args=(client, job, following, shown), daemon=True)
        watcher.start()
    stream = followed(
        client,
        job_path(job.uid, "/logs"),
        patience,
        following.seen,
        **{**following.first, **following.which},
    )
    none = choice.between((), tail=False)
    for lines in stream:
        chosen = list(filter(choice.wants, lines)) if choice.severity else lines
        shown.lines(chosen, none)
    if watcher is not None and timeline is not None:
        # Not for ever: the thread may still wait for the service. The entries that it has not printed are
        # few.
        watcher.join(_LAST_ENTRIES)
        for entry in filter(choice.wants_event, timeline.fresh()):
            shown.entries([entry])


def _tell(client: Client, job: JobView, following: _Following, shown: _Shown) -> None:
    """Print entries as they come, until the job is over or the service is away. Fails silently then, because
    the follower of the lines tells the user."""
    timeline = following.timeline
    assert timeline is not None
    with contextlib.suppress(Unreachable, Refused), client.stream(job_path(job.uid, "/watch")) as s:
        for _ in s:
            for entry in filter(following.choice.wants_event, timeline.fresh()):
                shown.entries([entry])


def followed(
    client: Client,
    path: str,
    patience: Patience,
    seen: SeenLines,
    *,
    tail: int | str | None = None,
    since: int | str | None = None,
    **which: str | int | None,
) -> Iterator[Sequence[Line]]:
    """Yield a job's lines that were not seen before, each once, until the job is over, also across restarts
    of the service. `tail` and `since`: where they begin if none was seen yet. `which`: further parameters of
    the streams. Raises Refused, Unreachable."""
    first = {"tail": tail, "since": since}
    return patience.outlast(
        lambda: log_stream(
            client, path, follow="true", **which, **(seen.query(tail is not None) or first)
        ),
        lambda lines: iter([fresh] if (fresh := seen.fresh(lines)) else []),
    )


def require_over(client: Client, uid: str) -> JobView:
    """Return the view of a job whose stream has ended.

    Raises Unreachable if the job is not over, since then the stream ended because the service stopped.
    """
    job = JobView.parse(client.get(job_path(uid)))
    if not job.state.is_final:
        raise Unreachable(
            f"The service ended the stream while the job is {job.state.value}; it is shutting down."
            f" The job goes on. When the service is back: trainshed jobs logs -f {job.id}"
        )
    return job
