"""What a job's replicas use, and what reducers say of their work."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from trainshed.wire.trainshed_v1.record import Record


class GpuUsage(Record, frozen=True):
    """A GPU of a replica."""

    uuid: str = ""
    type: str = ""
    #: Lately, from 0 to 1; null where it does not tell.
    busy: float | None = None
    #: On average.
    mean_busy: float | None = None
    memory_bytes: int | None = None
    total_memory_bytes: int | None = None
    peak_memory_bytes: int | None = None


class UsagePoint(Record, frozen=True):
    """What a replica used at a moment."""

    at: str = ""
    cpus: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0
    #: How busy each GPU was, from 0 to 1.
    gpus: tuple[float | None, ...] = ()
    #: Bytes a second over TCP since the point before; null where they are not counted.
    sent_per_second: float | None = None
    #: Likewise.
    received_per_second: float | None = None


class ReductionNote(Record, frozen=True):
    """Something that a replica said of its reduction."""

    at: str = ""
    name: str = ""
    severity: str = ""
    text: str = ""


class ReductionMode(Record, frozen=True):
    """Which way sums go, by the last note that says so."""

    since: str = ""
    severity: str = ""
    text: str = ""
    #: Past the reducers, by the framework's own way.
    is_native: bool = False
    #: They went to reducers before.
    was_reduced: bool = False
    #: Reducers that were lost since it was said.
    lost_reducers: int = 0
    lost_since: str = ""


class Reduction(Record, frozen=True):
    """What a reducer, or a worker that uses reducers, says of it."""

    incarnation: int = 0
    #: Restarts in this attempt.
    restarts: int = 0
    #: Of what moment the numbers are; "" = of none.
    sample_time: str = ""
    #: No more will come.
    over: bool = False
    #: What the replica reported last: numbers by name, or lists of numbers by rank.
    metrics: Mapping[str, Any] = {}
    #: Those that only grow, over all incarnations of the attempt.
    totals: Mapping[str, Any] = {}
    #: How fast the bytes grew lately.
    per_second: Mapping[str, float] = {}
    mode: ReductionMode | None = None
    notes: tuple[ReductionNote, ...] = ()


class ReplicaUsage(Record, frozen=True):
    """What one replica uses, and used. Means and maxima are over all incarnations of the attempt, the rest is
    of the newest."""

    id: str = ""
    task: str = ""
    #: "" of an earlier attempt: it is not known.
    state: str = ""
    machine_type: str = ""
    vcpus: float = 0.0
    #: Of memory; 0 = none.
    limit_bytes: int = 0
    incarnation: int = 0
    start_time: str = ""
    #: When it was last looked at; "" = not yet.
    sample_time: str = ""
    #: It will not be looked at again.
    over: bool = False
    processes: int = 0
    #: Processors at work lately, then on average and at most.
    cpus: float = 0.0
    mean_cpus: float = 0.0
    most_cpus: float = 0.0
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    #: What its files take; 0 = not known yet.
    disk_bytes: int = 0
    #: Of the disk that was asked for, which nothing holds it to.
    disk_limit_bytes: int = 0
    #: Bytes sent over TCP by all incarnations of the attempt, as far as they were counted; null where they
    #: are not.
    sent_bytes: int | None = None
    #: Likewise.
    received_bytes: int | None = None
    gpus: tuple[GpuUsage, ...] = ()
    #: The newest ones, oldest first.
    points: tuple[UsagePoint, ...] = ()
    #: Of workers and reducers of a job with reducers only.
    reduction: Reduction | UnsetType = UNSET


class Usage(Record, frozen=True):
    """What a job's replicas use, and used."""

    name: str = ""
    state: str = ""
    attempt: int = 0
    replicas: tuple[ReplicaUsage, ...] = ()
    #: Sentences about what was asked for and hardly used.
    hints: tuple[str, ...] = ()
