"""Why a job waits, and what would let it start: sentences for people, with exact counts."""

import dataclasses
from collections.abc import Iterator, Sequence

from trainshed.core.capacity import NodeCondition, Preflight, Waiting, WaitReason
from trainshed.core.names import JobUid
from trainshed.scheduler.books import Entry, Meter
from trainshed.scheduler.hints import hint
from trainshed.scheduler.model import Admit, Gang, Preempt, Standing
from trainshed.scheduler.planning import decide
from trainshed.scheduler.positions import position
from trainshed.scheduler.rooms import Kind, Kinds, holds, orders, slots
from trainshed.scheduler.snapshot import Snapshot
from trainshed.scheduler.verdicts import (
    GIB,
    cpus,
    described,
    memory,
    nodes_that_hold,
    room_for,
    verdict,
    verdict_of,
)

_NAMED = 5
"""So many blockers are named."""
SECOND = 10**9


def why(snapshot: Snapshot, uid: JobUid, now: int) -> Waiting | None:
    """Why the job, or a replica of it that lost its place, has no room at `now` (ns); None if it has all it needs.

    Says what is true after the last plan; costs no plan.
    """
    entry = snapshot.entries.get(uid)
    if entry is None or entry.standing.leaving:
        return None
    if entry.waits:
        return _waiting(snapshot, entry, now)
    return _homeless(snapshot, entry) if entry.standing.homeless else None


def preflight(snapshot: Snapshot, gang: Gang, now: int) -> Preflight:
    """Whether a gang that is not in the snapshot would start at once, and where; else why not. Costs one plan; the
    snapshot is afterwards as it was. Raises ValueError if its uid is in the snapshot."""
    if gang.uid in snapshot.entries:
        raise ValueError(
            f"job {gang.uid} is in the snapshot already: a pre-flight needs a uid of its own"
        )
    notices = _notices(snapshot, gang)
    kept = snapshot.kept
    snapshot.put(Standing(gang, waiting_since=now))
    try:
        place = position(snapshot, gang.uid)
        made = decide(snapshot, now).plan.decisions
        admitted = next((d for d in made if isinstance(d, Admit) and d.uid == gang.uid), None)
        if admitted is not None:
            places = tuple((str(replica), node) for replica, node in admitted.nodes)
            return Preflight(places, None, place, notices)
        waiting = _waiting(snapshot, snapshot.entries[gang.uid], now)
        yielding = [d.uid for d in made if isinstance(d, Preempt) and d.by == gang.name]
        if yielding:
            offer = f"would start as soon as {_jobs(snapshot, yielding)} had left: spot work gives way to it"
            names = tuple(snapshot.entries[uid].gang.name for uid in yielding[:_NAMED])
            waiting = dataclasses.replace(waiting, hint=offer, blockers=names)
        return Preflight((), waiting, place, notices)
    finally:
        snapshot.remove(gang.uid)
        snapshot.kept = kept


def _waiting(snapshot: Snapshot, entry: Entry, now: int) -> Waiting:
    standing = entry.standing
    missing, possible = verdict(snapshot, entry.shape.pack)
    if standing.not_before > now:
        seconds = -(-(standing.not_before - now) // SECOND)
        cause = f"{missing}; " if missing else ""
        message = f"{cause}is tried again in {seconds} s"
        offer = hint(snapshot, entry) if missing else ""
        return Waiting(WaitReason.BACK_OFF, message, offer, retry_at=standing.not_before)
    if missing:
        return Waiting(WaitReason.STOCK_OUT, missing, hint(snapshot, entry))
    if not possible:
        message = _no_node(snapshot, entry.shape.kinds)
        offers = (hint(snapshot, entry), _undrain(snapshot, entry.shape.kinds))
        return Waiting(WaitReason.NO_NODE, message, "; ".join(filter(None, offers)))
    for meter, amount in entry.meters:
        if meter.limit is not None and not meter.lets(amount, meter.limit - meter.used, meter.used):
            return _short(snapshot, entry, meter, amount)
    if snapshot.policy.strict and holds(snapshot.free, entry.shape.kinds) is None:
        message, held = _capacity(snapshot, entry)
        return Waiting(WaitReason.CAPACITY, message, hint(snapshot, entry), _names(snapshot, held))
    return _not_its_turn(snapshot, entry)


def _homeless(snapshot: Snapshot, entry: Entry) -> Waiting:
    replica, node = entry.standing.homeless[0]
    demand = dict(entry.gang.replicas)[replica]
    kinds = tuple((kind, 1) for kind in entry.kinds if kind.demand == demand)[:1]
    missing, possible = verdict_of(snapshot, kinds)
    count = len(entry.standing.homeless)
    all_of_them = f"{count} replicas wait for another place: " if count > 1 else ""
    lost = f"{all_of_them}{replica} lost its place" + (f" on {node}" if node else "")
    if missing:
        return Waiting(WaitReason.STOCK_OUT, f"{lost} and {missing}")
    if not possible:
        message = f"{lost}; {_no_node(snapshot, kinds)}"
        return Waiting(WaitReason.NO_NODE, message, _undrain(snapshot, kinds))
    needs = f" and needs {described(kinds[0][0])} on another node" if snapshot.policy.strict else ""
    held = _in_the_way(snapshot, entry, kinds[0][0])
    return Waiting(WaitReason.CAPACITY, lost + needs, "", _names(snapshot, held))


def _no_node(snapshot: Snapshot, kinds: Kinds) -> str:
    if not snapshot.nodes or all(node.room is None for node in snapshot.nodes.values()):
        return "no node is known yet"
    away = _away(snapshot, kinds)
    said = ", ".join(f"{name} {_condition(snapshot, name)}" for name in away[:_NAMED])
    more = f" and {len(away) - _NAMED} more" if len(away) > _NAMED else ""
    needs = f"needs {described(kinds[0][0])} on a node, and " if snapshot.policy.strict else ""
    return f"{needs}{said or 'the nodes that are left are too small'}{more}"


def _away(snapshot: Snapshot, kinds: Kinds) -> list[str]:
    """The nodes that would do and take no work now."""
    nodes = list(snapshot.known)
    if snapshot.policy.strict:
        nodes = nodes_that_hold(snapshot.known, kinds[0][0]) or nodes
    return [name for name in sorted(nodes) if not snapshot.nodes[name].is_ready]


def _undrain(snapshot: Snapshot, kinds: Kinds) -> str:
    """How drained nodes are given back, "" if none of those that would do is drained."""
    drained = [name for name in _away(snapshot, kinds) if _is_drained(snapshot, name)]
    if len(drained) > 1:
        return "a drained node is given back with: trainshed nodes undrain NAME"
    return (
        f"{drained[0]} is given back with: trainshed nodes undrain {drained[0]}" if drained else ""
    )


def _is_drained(snapshot: Snapshot, name: str) -> bool:
    room = snapshot.nodes[name].room
    return room is not None and room.condition is NodeCondition.DRAINED


def _condition(snapshot: Snapshot, name: str) -> str:
    return "is drained" if _is_drained(snapshot, name) else "does not answer"


def _short(snapshot: Snapshot, entry: Entry, meter: Meter, amount: int) -> Waiting:
    """A quota, or the number of replicas at once, is used up."""
    limit = meter.limit or 0
    holders = sorted(meter.holders, key=lambda uid: (-meter.holders[uid], uid))
    used = f"{meter.used / 1000:g} of {limit / 1000:g}"
    if meter.alone:
        what = f"needs {amount / 1000:g} replicas, and {used} that may run at once do"
        reason = WaitReason.REPLICA_LIMIT
    else:
        what = f"needs {amount / 1000:g} {meter.key.metric} in {meter.key.region}"
        reason = WaitReason.QUOTA
        if amount > limit:
            what += f", and the project's quota is {limit / 1000:g}"
        else:
            what += f", {used} are used by {_jobs(snapshot, holders)}"
    return Waiting(reason, what, hint(snapshot, entry), _names(snapshot, holders))


def _capacity(snapshot: Snapshot, entry: Entry) -> tuple[str, list[JobUid]]:
    """What is missing on the nodes, and who has it."""
    for kind, count in orders(entry.shape.kinds)[0]:
        there = room_for(snapshot.free, kind, count)
        if there >= count:
            continue
        held = _in_the_way(snapshot, entry, kind)
        ready = [name for _, name in snapshot.loads]
        if len(ready) == 1:
            return _on_the_one_node(snapshot, entry, ready[0]), held
        if there or count > 1:
            plural = "replicas" if count > 1 else "replica"
            needs = f"needs room for {count} {plural} of {described(kind)}"
            return f"{needs}, and there is room for {there} now", held
        return f"needs {_scarce(snapshot, kind)}", held
    (kind, _), *_ = orders(entry.shape.kinds)[0]
    size = sum(count for _, count in entry.shape.kinds)
    held = _in_the_way(snapshot, entry, kind)
    return f"needs room for {size} replicas together, and the nodes do not have it now", held


def _on_the_one_node(snapshot: Snapshot, entry: Entry, name: str) -> str:
    """With a single node it is all about sums: "needs 8 CPUs, 4 of 8 are used by job 17"."""
    node = snapshot.nodes[name]
    vectors = [(kind.vector(node.layout), count) for kind, count in entry.shape.kinds]
    has, free = snapshot.ready.vector(name), snapshot.free.vector(name)
    users = _jobs(snapshot, sorted(node.holders))
    for at, what in enumerate((*node.layout, "CPUs", "GiB of memory")):
        wanted = sum(vector[at] * count for vector, count in vectors)
        if wanted > free[at]:
            unit = {"CPUs": 1000, "GiB of memory": GIB}.get(what, 1)
            amounts = [
                f"{round(value / unit, 2):g}" for value in (wanted, has[at] - free[at], has[at])
            ]
            return f"needs {amounts[0]} {what}, {amounts[1]} of {amounts[2]} are used by {users}"
    return f"needs more than is free on {name}"


def _scarce(snapshot: Snapshot, kind: Kind) -> str:
    """`8 CPUs on one node, and at most 4 are free on one now`."""
    suited = [n for n in snapshot.free if kind.suits(snapshot.free.layout(n))]
    vectors = [snapshot.free.vector(n) for n in suited]
    if kind.accelerator:
        places = [snapshot.free.layout(n).index(kind.accelerator) for n in suited]
        most = max((v[at] for v, at in zip(vectors, places, strict=True)), default=0)
        if most < kind.demand.accelerators:
            wanted = f"{kind.demand.accelerators} {kind.accelerator}"
            return f"{wanted} on one node, and at most {most} are free on one now"
    most = max((vector[-2] for vector in vectors), default=0)
    if most < kind.cpus:
        return f"{cpus(kind.cpus)} on one node, and at most {most / 1000:g} are free on one now"
    most = max((vector[-1] for vector in vectors), default=0)
    if most < kind.demand.memory_bytes:
        wanted = memory(kind.demand.memory_bytes)
        return f"{wanted} of memory on one node, and at most {memory(most)} are free on one now"
    return f"{described(kind)} on one node, and none has all of it free now"


def _in_the_way(snapshot: Snapshot, entry: Entry, kind: Kind) -> list[JobUid]:
    """Running jobs on the nodes that would do, those first that give their room back first."""

    def found() -> Iterator[JobUid]:
        for _, uid in snapshot.releases:
            other = snapshot.entries[uid]
            if other is not entry and any(
                name in snapshot.ready
                and kind.suits(snapshot.ready.layout(name))
                and slots(snapshot.ready.vector(name), kind.vector(snapshot.ready.layout(name)))
                for name in other.held
            ):
                yield uid

    return [uid for uid, _ in zip(found(), range(_NAMED), strict=False)]


def _not_its_turn(snapshot: Snapshot, entry: Entry) -> Waiting:
    before = [kept.entry for kept in snapshot.kept if kept.entry.gang.uid != entry.gang.uid]
    waiting = [other for other in before if other.gang.uid in snapshot.entries]
    if waiting:
        names = tuple(other.gang.name for other in waiting[:_NAMED])
        jobs = _jobs(snapshot, [other.gang.uid for other in waiting])
        return Waiting(WaitReason.POLICY, f"the room is kept for {jobs}", "", names)
    ahead = position(snapshot, entry.gang.uid) - 1
    message = f"{ahead} job{'s stand' if ahead != 1 else ' stands'} before it"
    return Waiting(WaitReason.POLICY, message if ahead else "starts with the next decision")


def _notices(snapshot: Snapshot, gang: Gang) -> tuple[str, ...]:
    """Relaxed mode: devices that no node here has are left out (SPEC §2)."""
    if snapshot.policy.strict:
        return ()
    wanted = {demand.accelerator for _, demand in gang.replicas if demand.accelerators}
    there = {kind for name in snapshot.ready for kind in snapshot.ready.layout(name)}
    return tuple(
        f"no node here has {kind}: the job would run without" for kind in sorted(wanted - there)
    )


def _names(snapshot: Snapshot, uids: Sequence[JobUid]) -> tuple[str, ...]:
    return tuple(snapshot.entries[uid].gang.name for uid in uids[:_NAMED])


def _jobs(snapshot: Snapshot, uids: Sequence[JobUid]) -> str:
    """`job 17`, `jobs 17 and 18`, `jobs 1, 2, 3, 4, 5 and 7 more`: the last part of each name."""
    ids = [snapshot.entries[uid].gang.name.rsplit("/", 1)[-1] for uid in uids[:_NAMED]]
    if not ids:
        return "nobody"
    if len(uids) > _NAMED:
        return f"jobs {', '.join(ids)} and {len(uids) - _NAMED} more"
    if len(ids) == 1:
        return f"job {ids[0]}"
    return f"jobs {', '.join(ids[:-1])} and {ids[-1]}"
