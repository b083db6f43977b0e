"""The scheduler's inputs and decisions as plain values. Also converts stored jobs to gangs, and decisions to
events of their jobs."""

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.capacity import EACH, MachineWanted, Node, NodeCondition, QuotaKey, accelerator_counts
from trainshed.core.catalog import quotas
from trainshed.core.failure.evidence import Cause
from trainshed.core.job import Disk, Machine, Strategy
from trainshed.core.lifecycle.events import CapacityRefused, Event, JobAdmitted, Preempted, ReplicaPlaced
from trainshed.core.lifecycle.records import Job, person_of
from trainshed.core.lifecycle.states import AttemptState
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.reservations import Hold, PersistentResource, kind_of
from trainshed.core.units import Bytes, Nanos


class Demand(Struct, frozen=True, gc=False):
    """The resources that one replica requests of a node."""

    vcpus: float = 0.0
    memory_bytes: int = 0
    #: Number of accelerators.
    accelerators: int = 0
    machine: MachineWanted = MachineWanted()


Replicas = tuple[tuple[ReplicaId, Demand], ...]
"""The replicas of a gang with their requested resources."""


class GangRequest(Struct, frozen=True, gc=False):
    """A job as the scheduler uses it: its gang with the requested resources. The request never changes,
    unless the job receives more memory."""

    uid: JobUid
    #: The full job name, for messages.
    name: str
    project_id: str
    region: str
    priority: int
    #: Creation of the job in nanoseconds since the epoch.
    created: Nanos
    replicas: Replicas
    #: The address of the responsible user, or "" if unknown.
    person: str = ""
    #: The gang's amount of each metric of its project and region while it is placed.
    quota: tuple[tuple[str, float], ...] = ()
    #: Whether on-demand gangs may preempt this gang.
    spot: bool = False
    #: Whether the gang represents machines of a persistent resource. These keep their nodes when a hard
    #: budget is used up.
    is_reservation: bool = False


class GangState(Struct, frozen=True, gc=False):
    """The current placement of a gang. If `places` is not empty, replicas that are missing there have lost
    their node and wait for another node."""

    gang: GangRequest
    #: (replica, node) of the placed replicas. Empty while the whole gang waits.
    places: tuple[tuple[ReplicaId, str], ...] = ()
    #: Replicas that lost their node, each with the node to avoid (None: any node is suitable). A replica
    #: returns to that node only if no other node has space.
    unplaced: tuple[tuple[ReplicaId, str | None], ...] = ()
    #: Start of the waiting time (ns).
    waiting_since: int = 0
    #: Earliest admission after a back-off (ns), or 0.
    not_before: Nanos = 0
    #: Latest end of the gang (ns), or 0 if unknown.
    until: Nanos = 0
    #: Whether the gang's capacity is already being released.
    leaving: bool = False


class NodeCapacity(Node, frozen=True):
    """A node, and whether it accepts replicas. `accepts` is ignored in relaxed mode (`Policy.strict`)."""

    #: Only READY nodes accept replicas.
    condition: NodeCondition = NodeCondition.READY


class Policy(Struct, frozen=True):
    """The rules for assigning resources."""

    #: Whether nodes have capacities (spec/queue#capacity). Otherwise any node accepts any replica, and only
    #: `max_replicas` limits the number of concurrent replicas.
    strict: bool = False
    max_replicas: int = 256
    #: Waiting time in nanoseconds after which resources are reserved for a job. Until then, later jobs that
    #: fit may start before it.
    patience: int = 600 * 10**9
    #: Nanoseconds after which the weight of past usage halves in the fair share.
    half_life: int = 7 * 24 * 3600 * 10**9
    #: Maximum memory in bytes of a replica, independent of its machine. None without a maximum.
    memory_cap: Bytes | None = None
    #: Bytes that the engine needs on a node for each replica, in addition to the memory of the replica.
    memory_overhead: int = 0


Quotas = dict[QuotaKey, float]
"""Limits that an operator has set."""


def limit_of(limits: Mapping[QuotaKey, float], key: QuotaKey) -> float | None:
    """Return the limit that applies to a quota, or None without a limit."""
    limit = limits.get(key)
    return limits.get(replace(key, person=EACH)) if limit is None and key.person else limit


class Admit(Struct, frozen=True):
    """Decision: the whole gang is placed at once."""

    uid: JobUid
    nodes: tuple[tuple[ReplicaId, str], ...]


class Place(Struct, frozen=True):
    """Decision: a replica that lost its node is placed on another node."""

    uid: JobUid
    replica: ReplicaId
    node: str


class Preempt(Struct, frozen=True):
    """Decision: a job must release its nodes. Readers of the job may see `reason`."""

    uid: JobUid
    reason: str
    #: The full name of the job that receives the capacity, or None if a hard budget is used up.
    by: str | None = None


class StockOut(Struct, frozen=True):
    """Decision: no existing nodes can ever run the gang, or its replicas that have no node yet."""

    uid: JobUid
    reason: str


Decision = Admit | Place | Preempt | StockOut


class Plan(Struct, frozen=True):
    """The result of one run of the planner."""

    decisions: tuple[Decision, ...] = ()
    #: Time at which a new plan may differ without other changes (ns), or None.
    next_plan_at: Nanos | None = None
    #: The gangs with reserved resources.
    reservations: tuple[JobUid, ...] = ()


def gang(job: Job, policy: Policy) -> GangRequest:
    """Return the job's gang. It never changes, except for the memory that out-of-memory retries add.

    Only SPOT jobs can be preempted. FLEX_START jobs wait longer for their nodes, and keep them
    (facts/lifecycle#scheduling).
    """
    spec, strategy = job.spec, job.spec.scheduling.strategy
    pools = tuple([(p.position, p.machine, p.disk, p.replica_count) for p in spec.pools])
    if spec.persistent_resource is not None:
        # Charge no quota to the job, because its persistent resource is charged for the machines.
        replicas, quota = _slots(pools), ()
    else:
        replicas, quota = _contents(strategy, pools, job.memory_factor, policy)
    return GangRequest(
        uid=job.uid,
        name=str(job.name),
        project_id=job.name.project_id,
        region=spec.region,
        priority=spec.scheduling.priority,
        created=job.created,
        replicas=replicas,
        person=person_of(job.creator),
        quota=quota,
        spot=strategy is Strategy.SPOT,
    )


@functools.lru_cache(maxsize=1024)
def _contents(
    strategy: Strategy,
    pools: tuple[tuple[int, Machine, Disk, int], ...],
    memory_factor: float,
    policy: Policy,
) -> tuple[Replicas, tuple[tuple[str, float], ...]]:
    """Return replicas and quota amounts of a gang. Equal gangs share the same objects, because there may be a
    hundred thousand gangs with many replicas. `pools`: position, machine, disk and number of replicas of each
    pool."""
    replicas: list[tuple[ReplicaId, Demand]] = []
    for position, machine, _, count in pools:
        demand = _demand(machine, memory_factor, policy)
        replicas += [(ReplicaId(position, index), demand) for index in range(count)]
    return tuple(replicas), quotas.usage_of(strategy, [pool[1:] for pool in pools])


@functools.lru_cache(maxsize=1024)
def _slots(pools: tuple[tuple[int, Machine, Disk, int], ...]) -> Replicas:
    """Return the replicas of a job on a persistent resource. Each replica requests one machine of its
    kind."""
    return tuple(
        (ReplicaId(position, index), Demand(accelerators=1, machine=MachineWanted(None, kind)))
        for position, machine, _, count in pools
        for kind in (kind_of(machine),)
        for index in range(count)
    )


def slot_nodes(
    resource: PersistentResource | None, is_fit: Callable[[str], bool]
) -> tuple[NodeCapacity, ...]:
    """Return the machines of a persistent resource as nodes for its jobs. `is_fit`: returns whether a node is
    usable now. While machines are missing, an additional unavailable node represents them, so that jobs wait.
    Without a resource, no job fits."""
    if resource is None or resource.error is not None:
        return (NodeCapacity("", 0, 0),)
    is_open = not (resource.is_rebooting or resource.deleted_by)
    by_node: dict[str, dict[str, int]] = {}
    for (kind, node), count in resource.slots().items():
        by_node.setdefault(node, {})[kind] = count
    nodes = [
        NodeCapacity(
            node,
            0,
            0,
            accelerator_counts(kinds),
            condition=NodeCondition.READY if is_open and is_fit(node) else NodeCondition.GONE,
        )
        for node, kinds in by_node.items()
    ]
    if resource.slots().total() < sum(pool.count for pool in resource.pools):
        missing = f"it is {resource.state}"
        nodes.append(NodeCapacity("", 0, 0, unreached=missing, condition=NodeCondition.GONE))
    return tuple(nodes)


def hold_state(
    resource: PersistentResource, hold: Hold, policy: Policy, keeps: Callable[[str], bool]
) -> GangState:
    """Return the gang state of a hold. `keeps`: returns whether the hold's machines on a node stay there."""
    counts = Counter(replica.pool for replica in hold.replicas)
    replicas = ((r, _demand(resource.pool(r).machine, 1.0, policy)) for r in hold.replicas)
    wanted = [(resource.pools[at].machine, resource.pools[at].disk, n) for at, n in counts.items()]
    gang = GangRequest(
        uid=hold.uid,
        name=str(resource.name),
        project_id=resource.name.project_id,
        region=resource.name.location,
        priority=0,
        created=hold.created,
        replicas=tuple(replicas),
        person=resource.person,
        quota=quotas.usage_of(Strategy.STANDARD, wanted),
        is_reservation=True,
    )
    places = tuple((replica, node) for replica, node in hold.places if keeps(node))
    there = {replica for replica, _ in places}
    lost = tuple((r, dict(hold.places).get(r)) for r in hold.replicas if r not in there)
    return GangState(gang, places, lost if hold.places else (), waiting_since=hold.created)


def _demand(machine: Machine, memory_factor: float, policy: Policy) -> Demand:
    devices = machine.accelerators
    return Demand(
        vcpus=machine.vcpus,
        memory_bytes=_memory(machine, memory_factor, policy),
        accelerators=devices.count if devices else 0,
        machine=MachineWanted(machine.type, devices.type if devices else None),
    )


def _memory(machine: Machine, factor: float, policy: Policy) -> int:
    """Return the memory of a node, in bytes, that a replica uses. This is the whole memory of its machine,
    including memory that programs cannot use (spec/machines#memory), limited to `memory_cap`. It is at least
    the replica's memory limit plus `memory_overhead`."""
    whole, limit = round(machine.memory_bytes * factor), int(machine.memory_limit_bytes * factor)
    if not whole:
        return 0
    if policy.memory_cap:
        whole, limit = min(whole, policy.memory_cap), min(limit, policy.memory_cap)
    return max(whole, limit + policy.memory_overhead)


def gang_state(job: Job, before: GangState | None, policy: Policy) -> GangState:
    """Return the gang state of a job. `before`: its last gang state."""
    demand = before.gang if before and job.memory_factor == 1.0 else gang(job, policy)
    if not job.is_placed:
        return GangState(
            demand,
            waiting_since=max(job.eligible, job.not_before),
            not_before=job.not_before,
            leaving=job.outcome is not None,
        )
    keeps = job.outcome is None and (job.retry is None or job.retry.keeps_room)
    leaving = job.phase is AttemptState.STOPPING and not keeps
    # A stopping job's replicas are not placed again. The job's next attempt requests nodes after its start.
    stopping = job.phase is AttemptState.STOPPING
    return GangState(
        demand,
        tuple((r.id, r.node) for r in job.replicas if r.node),
        () if stopping else tuple((r.id, r.avoid) for r in job.replicas if not r.node),
        waiting_since=job.created,
        until=job.running_until,
        leaving=leaving,
    )


def event_of_decision(decision: Decision, job: Job | None) -> Event | None:
    """Return a decision as an event of its job, or None if the job has changed and the decision no longer
    applies."""
    match decision:
        case Admit(_, nodes):
            return JobAdmitted(nodes, job.attempt + 1) if job else None
        case Place(_, replica, node):
            incarnations = {r.id: r.incarnation for r in job.replicas} if job else {}
            if job is None or replica not in incarnations:
                return None
            return ReplicaPlaced(
                attempt=job.attempt, replica=replica, incarnation=incarnations[replica], node=node
            )
        case Preempt(_, reason, by):
            return Preempted(reason, Cause.PREEMPTED if by else Cause.BUDGET)
        case StockOut(_, reason):
            return CapacityRefused(reason)
        case _:
            assert_never(decision)
