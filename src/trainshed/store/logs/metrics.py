"""Reads what trials have measured, from what their primaries' shims took down (spec/tuning#measurements).

`trainshed.replica.observe.metrics` writes the stream, each line complete with its newline, so that a torn
last one does not count until the rest has come.
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
"""Values that are remembered of all jobs together: some 80 MB."""


class _Entry(msgspec.Struct, frozen=True):
    """Either the start of an incarnation or one report; times in ns since the epoch."""

    started: Nanos = 0
    at: Nanos = 0
    step: int = 0
    values: dict[str, float] = msgspec.field(default_factory=dict[str, float])


_decoder = msgspec.json.Decoder(_Entry)


class MetricsReader:
    """Reads an engine's `streams`. Of jobs that are looked at again and again it remembers what it has read,
    the newest ones, up to `most` values of all together, and reads only what was appended since. For any
    thread; blocks for as long as a small file takes."""

    def __init__(self, streams: Streams, most: int = _MOST) -> None:
        self._streams = streams
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[JobUid, _Known] = OrderedDict()

    def measurements(self, job_uid: JobUid, started: Nanos = 0) -> tuple[Measurement, ...]:
        """All that a trial has measured in all its attempts and incarnations, one measurement per step,
        ascending by step; of each metric at each step the value that was reported last. The metrics of one
        measurement stand in the order of their names.

        `started`: since when `elapsed` counts, ns since the epoch; 0 = since the trial's first start. () for
        a job that has measured nothing, or that nobody watched.
        """
        with self._lock:
            return self._look(job_uid).measurements(started)

    def tags(self, job_uid: JobUid) -> tuple[str, ...]:
        """Names of all metrics that a trial has reported, in order: what to say when the study's is not among
        them."""
        with self._lock:
            return tuple(sorted(self._look(job_uid).tags))

    def forget(self, job_uid: JobUid) -> None:
        """The job is over; if it is asked for once more, it is read once more."""
        with self._lock:
            self._known.pop(job_uid, None)

    def _look(self, job_uid: JobUid) -> "_Known":
        """All that the job has reported until now."""
        known = self._known.pop(job_uid, None) or _Known()
        if not known.read(self._streams, job_uid):
            known = _Known()
            known.read(self._streams, job_uid)
        if known.count:
            self._known[job_uid] = known
        while sum(each.count for each in self._known.values()) > self._most:
            self._known.popitem(last=False)
        return known


class _Known:
    """What was read of one job. The order in which reports count is that of their times; of two at one time
    the one that was written later counts."""

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
        #: Bytes of whole lines that were read, by attempt.
        self._taken: dict[int, int] = {}
        self._begun = 0
        #: The first start, and the first report, ns; 0 = none yet.
        self._first = 0
        #: By step and name: when it was reported, in which attempt, and what.
        self._values: dict[int, dict[str, tuple[int, int, float]]] = {}
        self._last: dict[int, int] = {}
        self._since = 0
        #: By step, of those that have not changed; their elapsed times count from `_since`.
        self._made: dict[int, Measurement] = {}

    def read(self, streams: Streams, job_uid: JobUid) -> bool:
        """Take in what was appended; False if something that was read is not there any more, and all is to be
        read anew."""
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
            metrics = tuple((tag, told[2]) for tag, told in sorted(self._values[step].items()))
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
