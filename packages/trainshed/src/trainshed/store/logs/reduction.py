"""Reads what reducers and workers have last reported of a job's reduction, as their shims recorded it
(spec/reduction#reports).

`trainshed.replica.observe.reduction_reports` writes the stream. Times are ns since the epoch.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamKind, Streams
from trainshed.core.units import Nanos
from trainshed.store.logs.segments import contents, records

Metric = int | float | list[int | float]


class ReplicaReduction(Struct, frozen=True):
    """The last report of one replica: numbers, or numbers by rank, of the newest incarnation that has made
    any. Counters count from its start."""

    replica: ReplicaId
    incarnation: int
    at: Nanos
    metrics: Mapping[str, Metric]
    #: Whether no further report of this incarnation will come.
    over: bool = False


class _Entry(msgspec.Struct, frozen=True):
    """One line of the stream: a start, or a report."""

    started: Nanos = 0
    incarnation: int = 0
    at: Nanos = 0
    metrics: dict[str, Metric] = msgspec.field(default_factory=dict[str, Metric])
    last: bool = False


_decoder = msgspec.json.Decoder(_Entry)


def read_reduction(
    held: Iterable[Streams], job_uid: JobUid, attempt: int
) -> tuple[ReplicaReduction, ...]:
    """Return the last reports of all replicas of an attempt that have made any, in the order of replicas.
    Blocks for a few small reads."""
    replicas = [
        read
        for replica, data in contents(held, job_uid, attempt, StreamKind.REDUCTION)
        if (read := _last(replica, data))
    ]
    return tuple(sorted(replicas, key=lambda report: report.replica))


def _last(replica: ReplicaId, data: bytes) -> ReplicaReduction | None:
    last: ReplicaReduction | None = None
    incarnation = 0
    for entry in records(data, _decoder):
        if entry.started:
            incarnation = entry.incarnation
        elif incarnation:
            last = ReplicaReduction(replica, incarnation, entry.at, entry.metrics, entry.last)
    return last
