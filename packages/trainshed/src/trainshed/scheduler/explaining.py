"""Explains in sentences with exact counts why a job waits and how it could start. Also describes nodes and
quotas for users."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from msgspec.structs import asdict, replace

from trainshed.core.capacity import (
    NodeCondition,
    NodeStatus,
    Preflight,
    QuotaKey,
    QuotaStatus,
    Waiting,
    WaitReason,
)
from trainshed.core.catalog.quotas import GLOBAL, JOBS, QUEUED
from trainshed.core.errors import format_list
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.scheduler.entries import Entry, Meter
from trainshed.scheduler.fair_share import position
from trainshed.scheduler.fitting import (
    GIB,
    assess,
    assess_kinds,
    describe,
    fitting_nodes,
    scarce_resource,
    unreachable_clusters,
)
from trainshed.scheduler.model import Admit, GangRequest, GangState, Preempt
from trainshed.scheduler.planning import plan
from trainshed.scheduler.resources import (
    Kind,
    Kinds,
    count_fitting,
    count_placeable,
    find_placements,
    placement_orders,
)
from trainshed.scheduler.snapshot import CONCURRENT_REPLICAS, Snapshot

_MAX_NAMES = 5
"""Maximum number of jobs in a message about the jobs that use the missing capacity."""
_RESOURCES = "/persistentResources/"
"""A part of the names of persistent resources, whose holds use nodes like jobs."""
_SILENT = "does not answer"
_OPERATOR_CONDITIONS = {NodeCondition.DRAINED: "is drained", NodeCondition.QUARANTINED: "is quarantined"}
"""Node conditions that an operator can end."""
SECOND = 10**9


def explain_wait(snapshot: Snapshot, uid: JobUid, now: Nanos) -> Waiting | None:
    """Return the reason why the job, or a replica of it, has no node at `now` (ns). Return None if all its
    replicas have nodes. The result describes the state after the scheduler's last plan. No new plan is
    needed."""
    entry = snapshot.entries.get(uid)
    if entry is None or entry.state.leaving:
        return None
    if entry.waits:
        return _waiting(snapshot, entry, now)
    return _explain_unplaced(snapshot, entry) if entry.state.unplaced else None


def preflight(snapshot: Snapshot, gang: GangRequest, now: Nanos) -> Preflight:
    """Return whether a gang outside the snapshot would start at once. The result contains the nodes, or the
    reason if the gang would wait. Runs one plan of the scheduler and consumes the snapshot, so callers pass a
    copy."""
    snapshot.put(GangState(gang, waiting_since=now))
    at = position(snapshot, gang.uid)
    planned = plan(snapshot.copy(), now)
    made = planned.decisions
    admitted = next((d for d in made if isinstance(d, Admit) and d.uid == gang.uid), None)
    if admitted is not None:
        places = tuple((str(replica), node) for replica, node in admitted.nodes)
        return Preflight(places, None, at)
    snapshot.reservations = planned.reservations
    waiting = _waiting(snapshot, snapshot.entries[gang.uid], now)
    yielding = [d.uid for d in made if isinstance(d, Preempt) and d.by == gang.name]
    if yielding:
        leaving = _jobs(snapshot, gang, yielding)
        offer = f"would start as soon as {leaving} had ended: spot jobs yield to it"
        waiting = replace(waiting, hint=offer, blockers=_names(snapshot, gang, yielding))
    return Preflight((), waiting, at)


def _waiting(snapshot: Snapshot, entry: Entry, now: Nanos) -> Waiting:
    state = entry.state
    missing, possible = assess(snapshot, entry.shape.request)
    if state.not_before > now:
        seconds = -(-(state.not_before - now) // SECOND)
        cause = f"{missing}; " if missing else ""
        return Waiting(WaitReason.BACK_OFF, f"{cause}retries in {seconds} s")
    if missing:
        return Waiting(WaitReason.STOCK_OUT, missing)
    if not possible:
        kinds = entry.shape.kinds
        return Waiting(WaitReason.NO_NODE, _no_node(snapshot, kinds), _undrain_advice(snapshot, kinds))
    for key, amount in entry.meters:
        meter = snapshot.meters[key]
        if not meter.has(amount):
            return _explain_shortage(snapshot, entry, meter, amount)
    if snapshot.policy.strict and not find_placements(snapshot.free, entry.shape.kinds):
        message, held = _capacity(snapshot, entry)
        message += _used_by_others(snapshot)
        names = _names(snapshot, entry.gang, held)
        return Waiting(WaitReason.CAPACITY, message, None, names)
    return _explain_queue(snapshot, entry)


def _explain_unplaced(snapshot: Snapshot, entry: Entry) -> Waiting:
    replica, node = entry.state.unplaced[0]
    demand = dict(entry.gang.replicas)[replica]
    kinds = tuple((kind, 1) for kind in entry.kinds if kind.demand == demand)[:1]
    missing, possible = assess_kinds(snapshot, kinds)
    count = len(entry.state.unplaced)
    all_of_them = f"{count} replicas wait for another node: " if count > 1 else ""
    lost = f"{all_of_them}{replica} lost its place" + (f" on {node}" if node else "")
    if missing:
        return Waiting(WaitReason.STOCK_OUT, f"{lost} and {missing}")
    if not possible:
        message = f"{lost}; {_no_node(snapshot, kinds)}"
        return Waiting(WaitReason.NO_NODE, message, _undrain_advice(snapshot, kinds))
    needs = f" and needs {describe(kinds[0][0])} on another node" if snapshot.policy.strict else ""
    others = _used_by_others(snapshot) if snapshot.policy.strict else ""
    held = _blocking_jobs(snapshot, entry, kinds[0][0])
    return Waiting(WaitReason.CAPACITY, lost + needs + others, None, _names(snapshot, entry.gang, held))


def _no_node(snapshot: Snapshot, kinds: Kinds) -> str:
    if not snapshot.nodes or all(node.capacity is None for node in snapshot.nodes.values()):
        return "no node is known yet"
    if silent := unreachable_clusters(snapshot):
        return "; ".join(f"cluster {cluster.name} does not answer: {cluster.unreached}" for cluster in silent)
    away = _unavailable_nodes(snapshot, kinds)
    conditions = format_list((f"{name} {_condition(snapshot, name)}" for name in away), _MAX_NAMES)
    needs = f"needs {describe(kinds[0][0])} on a node, and " if snapshot.policy.strict else ""
    return f"{needs}{conditions or 'the remaining nodes are too small'}"


def _unavailable_nodes(snapshot: Snapshot, kinds: Kinds) -> list[str]:
    """Return the nodes that could run a replica of these kinds, but do not accept replicas at present."""
    nodes = list(snapshot.total_resources)
    if snapshot.policy.strict:
        nodes = fitting_nodes(snapshot.total_resources, kinds[0][0]) or nodes
    return [name for name in sorted(nodes) if not snapshot.nodes[name].is_ready]


def _undrain_advice(snapshot: Snapshot, kinds: Kinds) -> str | None:
    """Return advice on ending the drain or quarantine of suitable nodes, or None if no such node is
    suitable."""
    drained = [name for name in _unavailable_nodes(snapshot, kinds) if _condition(snapshot, name) != _SILENT]
    if not drained:
        return None
    name, what = (drained[0], drained[0]) if len(drained) == 1 else ("NAME", "a drained node")
    return f"return {what} to service with: trainshed nodes drain {name} --undo"


def _condition(snapshot: Snapshot, name: str) -> str:
    """Return the reason why a node accepts no replicas."""
    capacity = snapshot.nodes[name].capacity
    return _SILENT if capacity is None else _OPERATOR_CONDITIONS.get(capacity.condition, _SILENT)


def _explain_shortage(snapshot: Snapshot, entry: Entry, meter: Meter, amount: int) -> Waiting:
    """Return the explanation that a quota, or the number of concurrent replicas, is used up."""
    if (budget := snapshot.budget_message(meter.key)) is not None:
        project = meter.key.project_id
        raised = f"an owner can raise the budget: trainshed quotas --project {project} shows it"
        return Waiting(WaitReason.QUOTA, budget, raised)
    holders = sorted(meter.holders, key=lambda uid: (-meter.holders[uid], uid))
    if meter.is_exclusive:
        used = f"{meter.usage / 1000:g} of {(meter.limit or 0) / 1000:g}"
        what = f"needs {amount / 1000:g} replicas, and {used} replicas that may run at once are in use"
        reason = WaitReason.REPLICA_LIMIT
    else:
        reason = WaitReason.QUOTA
        what = _over_quota(snapshot, entry, meter, amount, holders)
    raised = None if meter.is_exclusive else raised_by(meter.key, (meter.usage + amount) / 1000)
    return Waiting(reason, what, raised, _names(snapshot, entry.gang, holders))


def raised_by(key: QuotaKey, enough: float) -> str:
    """Return a sentence with the role that can raise a limit, and the command for it."""
    region = "" if key.region == GLOBAL else f" --region {key.region}"
    user = f" --user {key.person}" if key.person else ""
    return (
        f"an owner can raise the limit: trainshed quotas set {key.metric} {enough:g} "
        f"--project {key.project_id}{region}{user}"
    )


def _over_quota(
    snapshot: Snapshot, entry: Entry, meter: Meter, amount: int, holders: Sequence[JobUid]
) -> str:
    key, limit = meter.key, (meter.limit or 0) / 1000
    whose = key.person or "the project"
    used_by = _jobs(snapshot, entry.gang, holders)
    if key.metric == JOBS:
        return f"{whose} may have at most {limit:g} job{'s' * (limit != 1)} at once, and has {used_by}"
    needs = f"needs {amount / 1000:g} {key.metric} in {key.region}"
    if amount > (meter.limit or 0):
        return f"{needs}, and {whose}'s quota is {limit:g}"
    return f"{needs}, {meter.usage / 1000:g} of {limit:g} are used by {used_by}"


def _capacity(snapshot: Snapshot, entry: Entry) -> tuple[str, list[JobUid]]:
    """Return the capacity that is missing on the nodes, and the gangs that use it."""
    for kind, count in placement_orders(entry.shape.kinds)[0]:
        there = count_placeable(snapshot.free, kind, count)
        if there >= count:
            continue
        held = _blocking_jobs(snapshot, entry, kind)
        ready = list(snapshot.ready)
        if len(ready) == 1:
            return _explain_single_node(snapshot, entry, ready[0]), held
        if there or count > 1:
            plural = "replicas" if count > 1 else "replica"
            needs = f"needs capacity for {count} {plural} of {describe(kind)}"
            return f"{needs}, and there is capacity for {there} now", held
        return f"needs {_scarce(snapshot, kind)}", held
    (kind, _), *_ = placement_orders(entry.shape.kinds)[0]
    size = sum(count for _, count in entry.shape.kinds)
    held = _blocking_jobs(snapshot, entry, kind)
    return f"needs capacity for {size} replicas together, and the nodes do not have it now", held


def _used_by_others(snapshot: Snapshot) -> str:
    """Return `; programs outside the service use node3 and node4`, or "" if no node has such programs. Also
    return "" if there is a single node, because the counts of its used resources include these programs."""
    names = [name for name in sorted(snapshot.ready) if any(snapshot.nodes[name].others)]
    if not names or len(snapshot.ready) == 1:
        return ""
    return f"; programs outside the service use {format_list(names, _MAX_NAMES)}"


def _explain_single_node(snapshot: Snapshot, entry: Entry, name: str) -> str:
    """Explain the missing capacity of a single node by sums: "needs 8 CPUs, 4 of 8 are used by job 17"."""
    node = snapshot.nodes[name]
    vectors = [(kind.vector(node.layout), count) for kind, count in entry.shape.kinds]
    has, free = snapshot.ready.vector(name), snapshot.free.vector(name)
    users = _jobs(snapshot, entry.gang, sorted(node.holders))
    for at, what in enumerate((*node.layout.types, "CPUs", "GiB of memory")):
        wanted = sum(vector[at] * count for vector, count in vectors)
        if wanted > free[at]:
            unit = {"CPUs": 1000, "GiB of memory": GIB}.get(what, 1)
            others = node.others[at]
            amounts = [
                f"{round(value / unit, 2):g}"
                for value in (wanted, has[at] - free[at] - others, has[at], others)
            ]
            if others and not node.holders:
                by = f"{amounts[3]} of {amounts[2]} are used outside the service"
            else:
                by = f"{amounts[1]} of {amounts[2]} are used by {users}"
                by += f" and {amounts[3]} by others" if others else ""
            return f"needs {amounts[0]} {what}, {by}"
    return f"needs more than is free on {name}"


def _scarce(snapshot: Snapshot, kind: Kind) -> str:
    """Return the scarce resource of a replica as text: `8 CPUs on one node, and at most 4 are free on one
    now`."""
    suited = [n for n in snapshot.free if kind.suits(snapshot.free.layout(n))]
    if (lack := scarce_resource(snapshot.free, suited, kind)) is None:
        return f"{describe(kind)} on one node, and no node has all of it free now"
    wanted, most = lack
    return f"{wanted} on one node, and at most {most} are free on one now"


def _blocking_jobs(snapshot: Snapshot, entry: Entry, kind: Kind) -> list[JobUid]:
    """Return running jobs on nodes that could run a replica of this kind, with the earliest ends first."""
    ready = snapshot.ready

    def holds(node: str) -> bool:
        if node not in ready or not kind.suits(layout := ready.layout(node)):
            return False
        return count_fitting(ready.vector(node), kind.vector(layout)) > 0

    others = (snapshot.entries[uid] for _, uid in snapshot.releases if uid != entry.uid)
    return list(islice((other.uid for other in others if any(map(holds, other.kinds_by_node))), _MAX_NAMES))


def _explain_queue(snapshot: Snapshot, entry: Entry) -> Waiting:
    others = [uid for uid in snapshot.reservations if uid != entry.gang.uid]
    waiting = [uid for uid in others if uid in snapshot.entries]
    if waiting:
        message = f"the capacity is reserved for {_jobs(snapshot, entry.gang, waiting)}"
        return Waiting(WaitReason.POLICY, message, None, _names(snapshot, entry.gang, waiting))
    ahead = position(snapshot, entry.gang.uid) - 1
    message = f"{ahead} job{'s are' if ahead != 1 else ' is'} ahead of it"
    return Waiting(WaitReason.POLICY, message if ahead else "starts with the next decision")


def _own_names(snapshot: Snapshot, gang: GangRequest, uids: Iterable[JobUid]) -> list[str]:
    """Return the names of the jobs that belong to the gang's project. Readers of a job may not see jobs of
    other projects."""
    gangs = (snapshot.entries[uid].gang for uid in uids)
    return [other.name for other in gangs if other.project_id == gang.project_id]


def _names(snapshot: Snapshot, gang: GangRequest, uids: Sequence[JobUid]) -> tuple[str, ...]:
    return tuple(_own_names(snapshot, gang, uids)[:_MAX_NAMES])


def _jobs(snapshot: Snapshot, gang: GangRequest, uids: Sequence[JobUid]) -> str:
    """Return job numbers as text: `job 17`, `jobs 17 and 18`, `jobs 1, 2, 3, 4, 5 and 7 more`, or `job 17 and
    jobs of other projects`."""
    if not uids:
        return "nobody"
    own = _own_names(snapshot, gang, uids)
    jobs = [name.rsplit("/", 1)[-1] for name in own if _RESOURCES not in name]
    resources = [name.rsplit("/", 1)[-1] for name in own if _RESOURCES in name]
    mine = f"job{'s' if len(jobs) > 1 else ''} {format_list(jobs, _MAX_NAMES)}" if jobs else ""
    if resources:
        reserved = f"persistent resource {format_list(resources, _MAX_NAMES)}"
        mine = " and ".join(filter(None, (mine, reserved)))
    others = "jobs of other projects" if len(own) < len(uids) else ""
    return " and ".join(filter(None, (mine, others)))


def node_statuses(
    snapshot: Snapshot, causes: Mapping[str, str], jobs: Iterable[Entry]
) -> tuple[NodeStatus, ...]:
    """Return the status of all nodes that the engine lists, by name. `causes`: why a node is in its
    condition. `jobs`: the jobs whose replicas are included."""
    replicas: dict[str, list[str]] = {}
    for entry in jobs:
        for replica, node in entry.state.places:
            replicas.setdefault(node, []).append(f"{entry.gang.name} {replica}")
    statuses: list[NodeStatus] = []
    for name, node in sorted(snapshot.nodes.items()):
        capacity = node.capacity
        if capacity is None:
            continue
        # Limit the displayed use to the size of the node. In relaxed mode, replicas may have requested more
        # than the node has, and then share the whole node.
        there = dict(capacity.accelerators)
        used = (
            (kind, min(count, there.get(kind, 0)))
            for kind, count in zip(node.layout.types, node.usage, strict=False)
        )
        statuses.append(
            NodeStatus(
                **asdict(capacity),
                cause=causes.get(name),
                used_vcpus=min(node.usage[-2] / 1000, capacity.vcpus),
                used_memory_bytes=min(node.usage[-1], capacity.memory_bytes),
                used_accelerators=tuple((kind, count) for kind, count in used if count),
                replicas=tuple(sorted(replicas.get(name, ()))),
            )
        )
    return tuple(statuses)


def quota_statuses(snapshot: Snapshot, project_id: str | None) -> tuple[QuotaStatus, ...]:
    """Return the status of all quotas that have a limit, usage, or waiting jobs. `project_id`: None for all
    projects. Sorted by project, region, metric and user."""
    keys = {*snapshot.meters, *snapshot.quotas} - {CONCURRENT_REPLICAS}
    statuses: list[QuotaStatus] = []
    for key in sorted(keys, key=lambda k: (k.project_id, k.region, k.metric, k.person)):
        limit = snapshot.limit(key)
        meter = snapshot.meters.get(replace(key, metric=JOBS) if key.metric == QUEUED else key)
        used, waiting = (meter.usage, meter.waiting) if meter else (0, 0)
        used = waiting if key.metric == QUEUED else used
        # Without a limit, report a quota only if it is used or requested, and only for the whole project.
        counts = limit is not None or ((used or waiting) and not (key.person or key.metric == JOBS))
        if project_id in (None, key.project_id) and counts:
            statuses.append(QuotaStatus(key=key, limit=limit, used=used / 1000, waiting=waiting / 1000))
    return tuple(statuses)
