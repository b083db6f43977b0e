"""Shows the reports of reducers, and of workers that use them, as tables and lines (spec/reduction#reports).
Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import click

from trainshed.cli.text.colours import faint, replica_colour, severity_colour
from trainshed.cli.text.moments import duration, local_moment, parse_moment
from trainshed.cli.text.tables import Column, joined, table
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.usage import Reduction, ReductionMode, ReplicaUsage

_NOTHING = "–"
_LEAST_WAIT = 0.05
"""Seconds; shorter waits are not shown."""
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@dataclass(frozen=True, slots=True)
class NoteView:
    """A note of a replica: what it reported to the timeline, or its current way of reducing."""

    severity: str
    text: str


@dataclass(frozen=True, slots=True)
class ReductionView:
    """One replica's part in the reduction, as it was last reported."""

    id: str
    task: str
    #: Time of its last report, ns since the epoch; 0 = there is none.
    seen: Nanos
    #: True if no more reports will come.
    over: bool
    #: Bytes since the attempt began, over all its incarnations.
    received: float
    sent: float
    #: Current bytes per second.
    receives: float
    sends: float
    #: Chunks in flight; None = not reported.
    in_flight: float | None
    #: Broken connections after which it began again; None = not reported.
    resets: float | None
    #: Of a reducer: seconds that it waited for each rank alone. Of a worker: seconds that it waited.
    waits: float | Sequence[float]
    #: How often it was started again.
    restarts: int
    #: The first of them, if its way of reducing is known, says which way that is now.
    notes: tuple[NoteView, ...]

    @staticmethod
    def of(replica: ReplicaUsage, reduction: Reduction) -> "ReductionView":
        """Return the view of a replica's `reduction`."""
        totals, rates = reduction.totals, reduction.per_second
        return ReductionView(
            id=replica.id,
            task=replica.task,
            seen=parse_moment(reduction.sample_time),
            over=reduction.over,
            received=totals.get("received_bytes", 0),
            sent=totals.get("sent_bytes", 0),
            receives=rates.get("received_bytes", 0),
            sends=rates.get("sent_bytes", 0),
            in_flight=reduction.metrics.get("chunks_in_flight"),
            resets=totals.get("resets", totals.get("lost_connections")),
            waits=totals.get("wait_seconds", ()),
            restarts=reduction.restarts,
            notes=tuple(_notes(reduction)),
        )


def _notes(reduction: Reduction) -> Iterator[NoteView]:
    """Yield a note with the current way of reducing, which replaces all notes about it, then the others."""
    if mode := reduction.mode:
        yield NoteView(mode.severity, _mode_now(mode))
    for note in reduction.notes:
        if not note.name.startswith(("mode", "native", "chosen ")):
            yield NoteView(note.severity, note.text)


def _mode_now(mode: ReductionMode) -> str:
    if mode.is_native and mode.was_reduced:
        return f"native since {_clock(mode.since)}: {mode.text}"
    if mode.lost_reducers and not mode.is_native:
        return f"{mode.text} (since {_clock(mode.lost_since)} without {mode.lost_reducers} of them)"
    return mode.text


def _clock(moment: str) -> str:
    return local_moment(parse_moment(moment)).split()[1]


def reduction_lines(replicas: Iterable[ReplicaUsage]) -> list[str]:
    """Return the lines about a job's reduction that stand below its usage; [] for a job without reducers."""
    views = [
        ReductionView.of(replica, replica.reduction) for replica in replicas if replica.reduction
    ]
    heard = [view for view in views if view.seen]
    lines = reduction_table(heard) if heard else []
    return ["", *lines, *note_lines(views)] if heard or any(view.notes for view in views) else []


def reduction_table(views: Sequence[ReductionView]) -> list[str]:
    """Return the lines of a table with a row for each view."""
    columns = [
        Column("REDUCTION"),
        Column("IN", right=True),
        Column("OUT", right=True),
        Column("RECEIVED", right=True),
        Column("SENT", right=True),
        Column("IN FLIGHT", right=True),
        Column("RESETS", right=True),
        Column("RESTARTS", right=True),
        Column("WAITED"),
    ]
    rows = [
        (
            view.task,
            _NOTHING if view.over else f"{size(view.receives)}/s",
            _NOTHING if view.over else f"{size(view.sends)}/s",
            size(view.received),
            size(view.sent),
            _NOTHING if view.over or view.in_flight is None else f"{view.in_flight:.0f}",
            _NOTHING if view.resets is None else f"{view.resets:.0f}",
            f"{view.restarts}",
            waited(view.waits) or _NOTHING,
        )
        for view in views
    ]
    header, *cells = table(columns, rows)
    lines = [faint(joined(header))]
    for view, row in zip(views, cells, strict=True):
        row[0] = click.style(row[0], fg=replica_colour(view.id))
        lines.append(joined(row))
    return lines


def note_lines(views: Iterable[ReductionView]) -> list[str]:
    """Return the notes in the colours of their severities; a note that several replicas have is shown
    once."""
    tellers: dict[NoteView, list[str]] = {}
    for view in views:
        for note in dict.fromkeys(view.notes):
            tellers.setdefault(note, []).append(view.task)
    return [
        click.style(f"{_tellers(tasks)}: {note.text}", fg=severity_colour(note.severity))
        for note, tasks in tellers.items()
    ]


def _tellers(tasks: Sequence[str]) -> str:
    others = len(tasks) - 1
    return f"{tasks[0]} and {others} other{'s' * (others > 1)}" if others else tasks[0]


def waited(waits: float | Sequence[float]) -> str:
    """Return waiting as text, such as `14s, 12s for rank 3`: the total, and for the slowest rank if ranks are
    known; "" for less than `_LEAST_WAIT`."""
    by_rank = waits if isinstance(waits, Sequence) else ()
    total = sum(by_rank) if isinstance(waits, Sequence) else waits
    if total < _LEAST_WAIT:
        return ""
    text = duration(int(total * 1e9))
    if not by_rank:
        return text
    most = max(by_rank)
    return f"{text}, {duration(int(most * 1e9))} for rank {by_rank.index(most)}"


def size(count: float) -> str:
    """Return a number of bytes as text, such as `24.1 MB`, in powers of ten as is usual for networks."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} B"
