"""Usage of jobs: how long they use machines. Usage reports, budgets and the fair share are computed from it.
Pure.

Usage of an attempt counts from the start of its first program until the end of its last replica. Environment
builds, which jobs share, and waits for a cluster's nodes do not count. The usage on a node never exceeds the
node's size. In relaxed capacity, machine types may be larger than nodes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.capacity import Node, QuotaKey
from trainshed.core.catalog.machines import machine_types
from trainshed.core.catalog.quotas import COST, CPU_HOURS, GPU_HOURS
from trainshed.core.job import Machine
from trainshed.core.lifecycle.records import Job, person_of
from trainshed.core.names import ReplicaId, normalize_emails
from trainshed.core.reservations import PersistentResource
from trainshed.core.units import Nanos

HOUR: Final = 3600 * 10**9
"""One hour in nanoseconds."""


class MachineTime(Struct, frozen=True):
    """Usage of one machine type on a node by similar jobs, in hours."""

    project_id: str
    #: The address of the responsible user, or "" if unknown.
    person: str
    labels: tuple[tuple[str, str], ...]
    #: The node. "" if no node was recorded, or for all nodes together.
    node: str
    #: The public machine type, and the type of its accelerators ("" without accelerators).
    machine: str
    accelerator: str
    machine_hours: float = 0
    cpu_hours: float = 0
    gigabyte_hours: float = 0
    gpu_hours: float = 0
    #: CPU hours for which usage records exist. `busy_cpu_hours` is the part of these hours in which CPUs were
    #: busy.
    seen_cpu_hours: float = 0
    busy_cpu_hours: float = 0
    seen_gpu_hours: float = 0
    busy_gpu_hours: float = 0

    def __post_init__(self) -> None:
        normalize_emails(self, "person")


class Use(Struct, frozen=True):
    """Machines of one type that an attempt used on a node."""

    project_id: str
    person: str
    labels: tuple[tuple[str, str], ...]
    #: The full name of the job.
    job: str
    #: The node, or "" if none was recorded for the replicas.
    node: str
    replicas: tuple[ReplicaId, ...]
    #: Start of the usage, in nanoseconds since the epoch.
    began: Nanos
    ended: Nanos
    machine: str
    accelerator: str
    #: Number of machines. The next three fields are the sums over these machines, limited to the node's size.
    machines: int
    vcpus: float
    memory_bytes: int
    accelerators: int
    #: Average number of busy CPUs, or None without usage records of a replica.
    busy_cpus: float | None = None
    busy_gpus: float | None = None

    def within(self, since: Nanos, until: Nanos) -> MachineTime:
        """Return the part of the usage between two times."""
        hours = max(0, min(self.ended, until) - max(self.began, since)) / HOUR
        return MachineTime(
            project_id=self.project_id,
            person=self.person,
            labels=self.labels,
            node=self.node,
            machine=self.machine,
            accelerator=self.accelerator,
            machine_hours=hours * self.machines,
            cpu_hours=hours * self.vcpus,
            gigabyte_hours=hours * self.memory_bytes / 1e9,
            gpu_hours=hours * self.accelerators,
            seen_cpu_hours=0 if self.busy_cpus is None else hours * self.vcpus,
            busy_cpu_hours=hours * (self.busy_cpus or 0),
            seen_gpu_hours=0 if self.busy_gpus is None else hours * self.accelerators,
            busy_gpu_hours=hours * (self.busy_gpus or 0),
        )


class Prices(Struct, frozen=True):
    """Prices per hour, by machine type and by accelerator type."""

    per_hour: Mapping[str, float] = {}

    def cost(self, used: MachineTime) -> float:
        """Return the cost of a usage. Types without a price are free. A machine with fewer processors than
        its type costs a proportional part of the price."""
        machine = machine_types().get(used.machine)
        hours = used.cpu_hours / machine.vcpus if machine else used.machine_hours
        price = self.per_hour.get
        return price(used.machine, 0) * hours + price(used.accelerator, 0) * used.gpu_hours


Owner = tuple[str, str, tuple[tuple[str, str], ...], str]
"""The project, the responsible user, the labels and the full name of a job or of a persistent resource."""


def uses(job: Job, until: Nanos, nodes: Mapping[str, Node]) -> tuple[Use, ...]:
    """Return the usage of the newest attempt until a given time.

    Empty if none of its programs has started, or if the job runs on a persistent resource, whose usage is
    recorded separately. `nodes`: the known nodes by name.
    """
    # Records of earlier versions do not contain `began`.
    began = job.began or min((r.started for r in job.replicas if r.started), default=0)
    if not began or job.spec.persistent_resource is not None:
        return ()
    owner = (job.name.project_id, person_of(job.creator), job.labels, str(job.name))
    places = {replica.id: replica.node or "" for replica in job.replicas}
    pools = ((pool.machine, pool.replicas()) for pool in job.spec.pools)
    return _machines(owner, pools, places, (began, until), nodes)


def reserved_use(
    resource: PersistentResource,
    until: Nanos,
    nodes: Mapping[str, Node],
    after: PersistentResource | None = None,
) -> Iterator[Use]:
    """Yield the usage of the machines that a persistent resource reserves until a given time. Machines that
    it still reserves in the state `after` are omitted."""
    name = resource.name
    owner = (name.project_id, resource.person, resource.labels, str(name))
    kept = {hold.uid: dict(hold.places) for hold in after.holds} if after is not None else {}
    for hold in resource.holds:
        places = {r: n for r, n in hold.places if r not in kept.get(hold.uid, {})}
        pools = (
            (pool.machine, tuple(r for r in places if r.pool == at)) for at, pool in enumerate(resource.pools)
        )
        yield from _machines(owner, pools, places, (hold.since, until), nodes)


def _machines(
    owner: Owner,
    pools: Iterable[tuple[Machine, Sequence[ReplicaId]]],
    places: Mapping[ReplicaId, str],
    span: tuple[Nanos, Nanos],
    nodes: Mapping[str, Node],
) -> tuple[Use, ...]:
    began, until = span
    #: The part of each node that the machines of earlier pools leave: processors, bytes of memory,
    #: accelerators.
    left = {
        node.name: (node.vcpus, node.memory_bytes, sum(count for _, count in node.accelerators))
        for node in map(nodes.get, {*places.values()})
        if node is not None
    }
    held: list[Use] = []
    for machine, pool in pools:
        accelerators = machine.accelerators
        by_node: dict[str, list[ReplicaId]] = {}
        for replica in pool:
            by_node.setdefault(places.get(replica, ""), []).append(replica)
        for node, replicas in by_node.items():
            count = len(replicas)
            devices = accelerators.count * count if accelerators else 0
            wanted = machine.vcpus * count, machine.memory_bytes * count, devices
            there = left.get(node, wanted)
            vcpus = min(wanted[0], there[0])
            memory, gpus = min(wanted[1], there[1]), min(wanted[2], there[2])
            left[node] = there[0] - vcpus, there[1] - memory, there[2] - gpus
            held.append(
                Use(
                    *owner,
                    node,
                    tuple(replicas),
                    began,
                    max(until, began),
                    machine.type,
                    accelerators.type if accelerators else "",
                    count,
                    vcpus,
                    memory,
                    gpus,
                )
            )
    return tuple(held)


def released_use(before: Job, after: Job, nodes: Mapping[str, Node]) -> tuple[Use, ...]:
    """Return the usage of the attempt that ended between the stored states `before` and `after` of a job.
    Return () if no attempt ended."""
    if not before.placed or before.placed == after.placed:
        return ()
    began, ended = (after.began, after.ended) if after.ended else (after.began_before, after.freed)
    return uses(replace(before, began=began), ended, nodes)


def budget_amounts(used: MachineTime, prices: Prices) -> dict[str, float]:
    """Return the usage as amounts by metric of `BUDGETS`."""
    return {COST: prices.cost(used), CPU_HOURS: used.cpu_hours, GPU_HOURS: used.gpu_hours}


class Budget(Struct, frozen=True):
    """A budget of a month, with its used amount."""

    key: QuotaKey
    #: The limit, which is more than 0, in the unit of the metric: hours or money.
    limit: float
    usage: float
    #: Percentages of the limit that cause an action, ascending.
    marks: tuple[int, ...]

    @property
    def reached_mark(self) -> int:
        """The highest percentage in `marks` that the usage has reached, or 0 if it has reached none."""
        reached = [mark for mark in self.marks if self.usage >= self.limit * mark / 100]
        return max(reached, default=0)


def month_of(now: Nanos) -> tuple[Nanos, Nanos]:
    """Return the start and the end of the calendar month that contains a time, in UTC."""
    at = datetime.fromtimestamp(now // 10**9, UTC)
    begins = datetime(at.year, at.month, 1, tzinfo=UTC)
    ends = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    return round(begins.timestamp()) * 10**9, round(ends.timestamp()) * 10**9
