"""What jobs use: for how long they hold machines. The report of usage, budgets and the fair share that
remembers are counted from it. Pure.

An attempt holds its places from its admission until they are given back, whether its programs run or not:
nobody else can have them meanwhile. What ended while the service was away held them until it ended.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from trainshed.core.capacity import QuotaKey
from trainshed.core.catalog.quotas import COST, CPU_HOURS, GPU_HOURS
from trainshed.core.lifecycle.records import Job, person_of
from trainshed.core.names import ReplicaId
from trainshed.core.units import Nanos

HOUR: Final = 3600 * 10**9
"""Nanoseconds."""


class MachineTime(Struct, frozen=True):
    """What jobs that are alike have used of one machine type on a node, in hours."""

    project_id: str
    #: The address of whoever is responsible for the jobs; "" = it is not known.
    person: str
    labels: tuple[tuple[str, str], ...]
    #: "" = none was found for it, or all nodes together.
    node: str
    #: The public machine type, and the type of its accelerators ("" = it has none).
    machine: str
    accelerator: str
    machine_hours: float = 0
    cpu_hours: float = 0
    gigabyte_hours: float = 0
    gpu_hours: float = 0
    #: Of these hours, those of which replicas left records, and how many were at work by these.
    seen_cpu_hours: float = 0
    busy_cpu_hours: float = 0
    seen_gpu_hours: float = 0
    busy_gpu_hours: float = 0


class Use(Struct, frozen=True):
    """Machines of one type that an attempt held on a node."""

    project_id: str
    person: str
    labels: tuple[tuple[str, str], ...]
    #: The job's full name.
    job: str
    #: "" = none was found for the replicas.
    node: str
    replicas: tuple[ReplicaId, ...]
    #: Nanoseconds since the epoch.
    began: Nanos
    ended: Nanos
    machine: str
    accelerator: str
    #: How many machines; of the following, what all of them have together.
    machines: int
    vcpus: float
    memory_bytes: int
    accelerators: int
    #: How many were at work on average; None = no replica left a record of it.
    busy_cpus: float | None = None
    busy_gpus: float | None = None

    def within(self, since: Nanos, until: Nanos) -> MachineTime:
        """Return what was used between these moments."""
        hours = max(0, min(self.ended, until) - max(self.began, since)) / HOUR
        return MachineTime(
            self.project_id,
            self.person,
            self.labels,
            self.node,
            self.machine,
            self.accelerator,
            hours * self.machines,
            hours * self.vcpus,
            hours * self.memory_bytes / 1e9,
            hours * self.accelerators,
            0 if self.busy_cpus is None else hours * self.vcpus,
            hours * (self.busy_cpus or 0),
            0 if self.busy_gpus is None else hours * self.accelerators,
            hours * (self.busy_gpus or 0),
        )


class Prices(Struct, frozen=True):
    """What an hour costs: of a machine by its type, of one accelerator by its type."""

    per_hour: Mapping[str, float] = {}

    def cost(self, used: MachineTime) -> float:
        """Return what it costs. What has no price is free."""
        machine = self.per_hour.get(used.machine, 0) * used.machine_hours
        return machine + self.per_hour.get(used.accelerator, 0) * used.gpu_hours


def uses(job: Job, until: Nanos) -> tuple[Use, ...]:
    """Return what the job has held since it was placed; () if it holds nothing."""
    if not job.placed:
        return ()
    nodes = {replica.id: replica.node for replica in job.replicas}
    held: list[Use] = []
    for pool in job.spec.pools:
        machine, accelerators = pool.machine, pool.machine.accelerators
        by_node: dict[str, list[ReplicaId]] = {}
        for replica in pool.replicas():
            by_node.setdefault(nodes.get(replica) or "", []).append(replica)
        held += (
            Use(
                job.name.project_id,
                person_of(job.creator),
                job.labels,
                str(job.name),
                node,
                tuple(replicas),
                job.placed,
                max(until, job.placed),
                machine.type,
                accelerators.type if accelerators else "",
                len(replicas),
                machine.vcpus * len(replicas),
                machine.memory_bytes * len(replicas),
                accelerators.count * len(replicas) if accelerators else 0,
            )
            for node, replicas in by_node.items()
        )
    return tuple(held)


def released(before: Job, after: Job) -> tuple[Use, ...]:
    """Return what the job gave back between two stored states."""
    return uses(before, after.ended or after.freed) if before.placed != after.placed else ()


def budgeted(used: MachineTime, prices: Prices) -> dict[str, float]:
    """Return how much of each metric of `BUDGETS` this is."""
    return {COST: prices.cost(used), CPU_HOURS: used.cpu_hours, GPU_HOURS: used.gpu_hours}


class Budget(Struct, frozen=True):
    """A budget of a month, and where it stands."""

    key: QuotaKey
    #: More than 0. The unit is that of the metric: hours, or money.
    limit: float
    used: float
    #: Percentages of the limit at which something is done, ascending.
    marks: tuple[int, ...]

    @property
    def reached(self) -> int:
        """The highest of the marks that is reached; 0 = none is."""
        reached = [mark for mark in self.marks if self.used >= self.limit * mark / 100]
        return max(reached, default=0)


def month_of(now: Nanos) -> tuple[Nanos, Nanos]:
    """Return when the calendar month of a moment begins and ends, in UTC."""
    at = datetime.fromtimestamp(now // 10**9, UTC)
    begins = datetime(at.year, at.month, 1, tzinfo=UTC)
    ends = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    return round(begins.timestamp()) * 10**9, round(ends.timestamp()) * 10**9
