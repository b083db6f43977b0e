"""Reads what trials have measured, as their primaries' shims recorded it (spec/tuning#measurements).

`trainshed.replica.observe.metrics` writes the stream. A line is complete with its newline, so that a torn
last line does not count until its rest has come.
"""

import threading
from collections import OrderedDict

import msgspec

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamKind, Streams
from trainshed.core.study.records import Measurement
from trainshed.core.units import Nanos
from trainshed.store.logs.segments import records

_PRIMARY = ReplicaId(0, 0)
_MOST = 200_000
"""Values that are kept in memory of all jobs together: some 80 MB."""


class _Entry(msgspec.Struct, frozen=True):
    """Either the start of an incarnation or one report; times in ns since the epoch."""

    started: Nanos = 0
    at: Nanos = 0
    step: int = 0
    values: dict[str, float] = msgspec.field(default_factory=dict[str, float])


_decoder = msgspec.json.Decoder(_Entry)


class MetricsReader:
    """Reads an engine's `streams`. Keeps what it has read of the jobs that were read most recently, up to
    `most` values of all jobs together, so that it only reads what was appended since. Callable from any
    thread; blocks for as long as reading a small file takes."""

    def __init__(self, streams: Streams, most: int = _MOST) -> None:
        self._streams = streams
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[JobUid, _Known] = OrderedDict()

    def measurements(self, job_uid: JobUid, started: Nanos = 0) -> tuple[Measurement, ...]:
        """Return what a trial has measured in all its attempts and incarnations: one measurement per step,
        ascending by step, with the last reported value of each metric at that step. The metrics of a
        measurement are ordered by name. () for a job that has measured nothing, or whose metrics were not
        recorded.

        `started`: the time from which `elapsed` counts, ns since the epoch; 0 = the trial's first start.
        """
        with self._lock:
            return self._look(job_uid).measurements(started)

    def tags(self, job_uid: JobUid) -> tuple[str, ...]:
        """Return the names of all metrics that a trial has reported, sorted: shown if the study's metric is
        not among them."""
        with self._lock:
            return tuple(sorted(self._look(job_uid).tags))

    def forget(self, job_uid: JobUid) -> None:
        """Drop what is kept of a job that is over; if it is asked for again, it is read again."""
        with self._lock:
            self._known.pop(job_uid, None)

    def _look(self, job_uid: JobUid) -> "_Known":
        """Return everything that the job has reported so far."""
        known = self._known.pop(job_uid, None) or _Known()
        if not known.read(self._streams, job_uid):
            known = _Known()
            known.read(self._streams, job_uid)
        if known.count:
            self._known[job_uid] = known
        while sum(job_metrics.count for job_metrics in self._known.values()) > self._most:
            self._known.popitem(last=False)
        return known


class _Known:
    """What was read of one job. Reports count in the order of their times; of two at the same time the one
    that was written later counts."""

    __slots__ = (
        "_begun",
        "_first",
        "_last",
        "_made",
        "_since",
        "_taken",
        "_values",
        "count",
        "tags",
    )

    def __init__(self) -> None:
        self.count = 0
        self.tags: set[str] = set()
        #: Bytes of complete lines that were read, by attempt.
        self._taken: dict[int, int] = {}
        self._begun = 0
        #: The time of the first report in ns; 0 = none yet.
        self._first = 0
        #: For each step and name: when it was reported, in which attempt, and the value.
        self._values: dict[int, dict[str, tuple[int, int, float]]] = {}
        self._last: dict[int, int] = {}
        self._since = 0
        #: Measurements by step, of steps that have not changed; their elapsed times count from `_since`.
        self._made: dict[int, Measurement] = {}

    def read(self, streams: Streams, job_uid: JobUid) -> bool:
        """Read what was appended. Return False if something that was read before is gone, and everything has
        to be read again."""
        sources = [source for source in streams.sources(job_uid) if source.replica == _PRIMARY]
        if self._taken.keys() - {source.attempt for source in sources}:
            return False
        for source in sorted(sources, key=lambda source: source.attempt):
            attempt, taken = source.attempt, self._taken.get(source.attempt, 0)
            stored = streams.open(source, StreamKind.METRICS)
            size = stored[0].size() if stored else 0
            if size < taken:
                return False
            if not stored:
                continue
            data = stored[0].read(taken, size - taken)
            for entry in records(data, _decoder):
                self._take(entry, attempt)
            self._taken[attempt] = taken + data.rfind(b"\n") + 1
        return True

    def measurements(self, started: Nanos) -> tuple[Measurement, ...]:
        since = started or self._begun or self._first
        if since != self._since:
            self._since = since
            self._made.clear()
        for step in self._values.keys() - self._made.keys():
            metrics = tuple(
                (tag, reported[2]) for tag, reported in sorted(self._values[step].items())
            )
            self._made[step] = Measurement(metrics, step, max(0, self._last[step] - since))
        return tuple(self._made[step] for step in sorted(self._made))

    def _take(self, entry: _Entry, attempt: int) -> None:
        if entry.started:
            self._begun = min(self._begun or entry.started, entry.started)
        if not entry.values:
            return
        self._first = min(self._first or entry.at, entry.at)
        self._last[entry.step] = max(self._last.get(entry.step, entry.at), entry.at)
        self._made.pop(entry.step, None)
        there = self._values.setdefault(entry.step, {})
        for tag, value in entry.values.items():
            before = there.get(tag)
            if before is None:
                self.count += 1
                self.tags.add(tag)
            if before is None or before[:2] <= (entry.at, attempt):
                there[tag] = (entry.at, attempt, value)
