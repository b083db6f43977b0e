"""Reads what reducers and workers have reported of a job's reduction, as their shims recorded it
(spec/reduction#reports).

`trainshed.replica.observe.reduction_reports` writes the stream. Times are ns since the epoch.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise, zip_longest
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamKind, Streams
from trainshed.core.units import Nanos
from trainshed.store.logs.segments import contents, records

COUNTERS: Final = ("received_bytes", "sent_bytes")
"""Metrics that only grow while a program runs, and whose rates are shown."""
SUMMED: Final = (
    *COUNTERS,
    "operations",
    "chunks",
    "resets",
    "refused",
    "lost_connections",
    "sent_again_bytes",
    "wait_seconds",
)
"""Metrics that start at 0 in each incarnation, so that only their sum describes the whole replica."""

Metric = float | tuple[float, ...]


class Sample(Struct, frozen=True):
    """The last reported metrics at a time: numbers, or numbers by rank. Counters count from the start of the
    incarnation."""

    at: Nanos
    metrics: Mapping[str, Metric]


class ReplicaReduction(Struct, frozen=True):
    """The part of one replica: reports of the newest incarnation that has made any."""

    replica: ReplicaId
    incarnation: int
    started: Nanos
    samples: tuple[Sample, ...]
    #: Whether no further sample will come.
    over: bool = False
    #: How often the replica was started again in this attempt.
    restarts: int = 0
    #: The SUMMED metrics of all incarnations before this one.
    before: Mapping[str, Metric] = field(default_factory=dict[str, Metric])

    def totals(self) -> dict[str, Metric]:
        """Return the SUMMED metrics, over all incarnations."""
        return _summed(self.before, self.samples[-1].metrics)

    def rates(self) -> dict[str, float]:
        """Return by how much per second each of the COUNTERS has grown lately."""
        last = self.samples[-1]
        before = Sample(self.started, dict.fromkeys(last.metrics, 0.0))
        for earlier, later in pairwise((before, *self.samples)):
            if later.at > earlier.at:
                before = earlier
        seconds = (last.at - before.at) / 1e9
        if seconds <= 0:
            return {}  # The clock was set back.
        return {
            name: max(0.0, value - earlier) / seconds
            for name in COUNTERS
            for value, earlier in ((last.metrics.get(name), before.metrics.get(name, 0.0)),)
            if isinstance(value, int | float) and isinstance(earlier, int | float)
        }


class _Entry(msgspec.Struct, frozen=True):
    """One line of the stream: a start, or a sample."""

    started: Nanos = 0
    incarnation: int = 0
    at: Nanos = 0
    metrics: dict[str, int | float | list[int | float]] = msgspec.field(
        default_factory=dict[str, int | float | list[int | float]]
    )
    last: bool = False


_decoder = msgspec.json.Decoder(_Entry)


def read_reduction(
    held: Iterable[Streams], job_uid: JobUid, attempt: int
) -> tuple[ReplicaReduction, ...]:
    """Return the reductions of all replicas of an attempt that have reported metrics, in the order of
    replicas; () if there is none. Blocks for a few small reads."""
    replicas = [
        read
        for replica, data in contents(held, job_uid, attempt, StreamKind.REDUCTION)
        if (read := _newest(replica, data))
    ]
    return tuple(sorted(replicas, key=lambda report: report.replica))


def _newest(replica: ReplicaId, data: bytes) -> ReplicaReduction | None:
    newest: ReplicaReduction | None = None
    incarnation = started = 0
    samples: list[Sample] = []
    before: Mapping[str, Metric] = {}
    for entry in records(data, _decoder):
        if entry.started:
            if newest is not None and samples:
                before = newest.totals()
            incarnation, started, samples = entry.incarnation, entry.started, []
        elif incarnation:
            metrics = {
                name: tuple(map(float, value)) if isinstance(value, list) else value
                for name, value in entry.metrics.items()
            }
            samples.append(Sample(entry.at, metrics))
            newest = ReplicaReduction(
                replica, incarnation, started, tuple(samples), entry.last, before=before
            )
    return None if newest is None else replace(newest, restarts=max(0, incarnation - 1))


def _summed(mine: Mapping[str, Metric], other: Mapping[str, Metric]) -> dict[str, Metric]:
    """Add the SUMMED metrics; numbers by rank are added rank by rank."""
    sums: dict[str, Metric] = {}
    for name in SUMMED:
        first, second = mine.get(name), other.get(name)
        if isinstance(first, tuple) and isinstance(second, tuple):
            sums[name] = tuple(map(sum, zip_longest(first, second, fillvalue=0.0)))
        elif isinstance(first, int | float) and isinstance(second, int | float):
            sums[name] = first + second
        elif (only := first if second is None else second) is not None:
            sums[name] = only
    return sums
