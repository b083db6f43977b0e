"""Reads the resource usage of replicas from files that their shims wrote (spec/program#usage).

`trainshed.replica.observe.usage` writes the streams. Units: times in ns since the epoch, processor time in
seconds, memory in bytes.
"""

from collections.abc import Iterable
from itertools import pairwise

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamKind, Streams
from trainshed.core.units import Bytes, Nanos
from trainshed.core.usage import Use
from trainshed.store.logs.segments import contents, records


class GpuLook(Struct, frozen=True, array_like=True):
    """A sample of one GPU. A value is None if the GPU does not report it.

    - busy: busy seconds since the start of the replica's run (incarnation).
    - used, total, peak: memory in use, total memory, maximum memory in use.
    - degrees: temperature in degrees Celsius.
    """

    busy: float | None
    used: int | None
    total: int | None
    peak: Bytes | None
    degrees: float | None = None


class Look(Struct, frozen=True):
    """A sample of a replica's resource usage."""

    #: Time of the sample in nanoseconds since the epoch.
    at: Nanos
    #: Seconds of processor time since the start of the replica's run (incarnation). A GPU's `busy` counts
    #: from the same moment.
    cpu: float
    memory: Bytes
    peak: Bytes
    processes: int
    gpus: tuple[GpuLook, ...] = ()
    #: Bytes of the replica's files, or 0 if unknown.
    disk: Bytes = 0


class Point(Struct, frozen=True):
    """The usage in the time between two samples. Memory and disk are the values of the second sample."""

    #: Time of the second sample in ns since the epoch.
    at: Nanos
    #: Average number of busy processors.
    cpus: float
    #: Bytes of memory.
    memory: Bytes
    #: Busy fraction of each GPU. None if the GPU does not report it.
    gpus: tuple[float | None, ...] = ()
    #: Bytes on disk, or 0 if unknown.
    disk: Bytes = 0


class Life(Struct, frozen=True):
    """The resource usage of one run (incarnation) of a replica."""

    incarnation: int
    started: Nanos
    #: Memory limit in bytes. 0 means no limit.
    limit: int = 0
    #: Number of processors of the machine, or 0 if unknown.
    cpus: int = 0
    #: UUIDs of the replica's own GPUs.
    gpus: tuple[str, ...] = ()
    looks: tuple[Look, ...] = ()
    #: Whether the shim marked the last sample as final, so no more samples of this run follow.
    over: bool = False

    @property
    def seconds(self) -> float:
        """The number of seconds from the start of the replica's run (incarnation) to its last sample."""
        return max(0, self.looks[-1].at - self.started) / 1e9 if self.looks else 0.0

    @property
    def cpu(self) -> float:
        return self.looks[-1].cpu if self.looks else 0.0

    @property
    def peak(self) -> int:
        return max((look.peak for look in self.looks), default=0)

    @property
    def mean_cpus(self) -> float:
        """The average number of busy processors."""
        return self.cpu / self.seconds if self.seconds else 0.0

    def points(self) -> tuple[Point, ...]:
        """Return the usage between successive samples, oldest first."""
        gpus = tuple(GpuLook(0.0, 0, 0, 0) for _ in self.gpus)
        begin = Look(self.started, 0.0, 0, 0, 0, gpus)
        return tuple(
            point
            for earlier, later in pairwise((begin, *self.looks))
            if (point := _point(earlier, later)) is not None
        )


class ReplicaUsage(Struct, frozen=True):
    """The resource usage of all runs (incarnations) of a replica in one attempt, in order."""

    replica: ReplicaId
    lives: tuple[Life, ...]

    @property
    def peak(self) -> int:
        return max(life.peak for life in self.lives)

    @property
    def seconds(self) -> float:
        return sum(life.seconds for life in self.lives)

    @property
    def cpu(self) -> float:
        return sum(life.cpu for life in self.lives)

    @property
    def mean_cpus(self) -> float:
        return self.cpu / self.seconds if self.seconds else 0.0

    @property
    def most_cpus(self) -> float:
        """The maximum, over all intervals between two samples, of the number of busy processors."""
        return max((point.cpus for life in self.lives for point in life.points()), default=0.0)


def with_busy_processors(use: Use, usages: Iterable[ReplicaUsage]) -> Use:
    """Return the machine use of an attempt, completed with the average numbers of busy processors and GPUs.
    The averages are computed from samples of the attempt's replicas. Without samples, the use stays
    unchanged."""
    seconds = (use.ended - use.began) / 1e9
    looks = [
        life.looks[-1]
        for usage in usages
        if usage.replica in use.replicas
        for life in usage.lives
        if life.looks
    ]
    if not looks or seconds <= 0:
        return use
    gpus = [gpu.busy for look in looks for gpu in look.gpus]
    known = [busy for busy in gpus if busy is not None]
    return replace(
        use,
        # Limit the value to the requested processors. If limits are not enforced, a program may use more of
        # them.
        busy_cpus=min(use.vcpus, sum(look.cpu for look in looks) / seconds),
        busy_gpus=min(use.accelerators, sum(known) / seconds) if known == gpus != [] else None,
    )


class _Entry(msgspec.Struct, frozen=True):
    """One line of the stream: a start, or a sample."""

    started: Nanos = 0
    incarnation: int = 0
    limit: int = 0
    cpus: int = 0
    at: Nanos = 0
    cpu: float = 0.0
    memory: Bytes = 0
    peak: Bytes = 0
    processes: int = 0
    gpus: tuple[str | GpuLook, ...] = ()
    disk: Bytes = 0
    last: bool = False


_NOT_TOLD = GpuLook(None, None, None, None)
_decoder = msgspec.json.Decoder(_Entry)


def read_usage(held: Iterable[Streams], job_uid: JobUid, attempt: int) -> tuple[ReplicaUsage, ...]:
    """Return the recorded usage of all replicas of an attempt, ordered by replica. Return () without records.
    Blocks for a few small reads."""
    usages = [
        ReplicaUsage(source.replica, lives)
        for source, data in contents(held, job_uid, StreamKind.USAGE, attempt)
        if (lives := _lives(data))
    ]
    return tuple(sorted(usages, key=lambda usage: usage.replica))


def _lives(data: bytes) -> tuple[Life, ...]:
    starts: list[tuple[_Entry, list[Look], bool]] = []
    for entry in records(data, _decoder):
        if entry.started:
            starts.append((entry, [], False))
        elif starts:
            start, looks, _ = starts[-1]
            gpus = tuple(gpu for gpu in entry.gpus if isinstance(gpu, GpuLook))
            looks.append(
                Look(entry.at, entry.cpu, entry.memory, entry.peak, entry.processes, gpus, entry.disk)
            )
            starts[-1] = (start, looks, entry.last)
    return tuple(
        Life(
            start.incarnation,
            start.started,
            start.limit,
            start.cpus,
            tuple(uuid for uuid in start.gpus if isinstance(uuid, str)),
            tuple(looks),
            over,
        )
        for start, looks, over in starts
    )


def _point(earlier: Look, later: Look) -> Point | None:
    seconds = (later.at - earlier.at) / 1e9
    if seconds <= 0:
        return None  # No usage: the samples have equal times, or the clock was set back.
    before = earlier.gpus or (_NOT_TOLD,) * len(later.gpus)
    gpus = tuple(
        None if now.busy is None or then.busy is None else min(1.0, max(0.0, now.busy - then.busy) / seconds)
        for then, now in zip(before, later.gpus, strict=False)
    )
    cpus = max(0.0, later.cpu - earlier.cpu) / seconds
    return Point(later.at, cpus, later.memory, gpus, later.disk)
