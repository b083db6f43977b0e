"""What a decision about a copy of the snapshot makes of a gang, and whether it still holds for the snapshot
itself, which may have changed meanwhile.
"""

from typing import assert_never

from msgspec.structs import replace

from trainshed.core.names import ReplicaId
from trainshed.scheduler.entries import Entry
from trainshed.scheduler.model import Admit, Decision, GangState, Place, Preempt, StockOut
from trainshed.scheduler.resources import Vector, plus
from trainshed.scheduler.snapshot import Snapshot

NEVER = 2**62
"""`not_before` of a gang that is refused for good and still there: it is not refused twice."""


def state_after(before: GangState, decision: Decision) -> GangState:
    """Return where the gang is when the decision about it has been taken."""
    match decision:
        case Admit(_, nodes):
            return replace(before, places=nodes, unplaced=())
        case Place(_, replica, node):
            unplaced = tuple(lost for lost in before.unplaced if lost[0] != replica)
            return replace(before, places=(*before.places, (replica, node)), unplaced=unplaced)
        case Preempt():
            return replace(before, leaving=True)
        case StockOut():
            return replace(before, not_before=NEVER)
        case _:
            assert_never(decision)


def still_holds(snapshot: Snapshot, planned: Snapshot, decision: Decision) -> bool:
    """Whether a decision about `planned`, once a copy of the snapshot, can be taken now: the gang is where it
    was, and what it gets is there."""
    entry = snapshot.entries.get(decision.uid)
    before = planned.entries[decision.uid].state
    if entry is None:
        return False
    match decision:
        case StockOut():
            return snapshot.version == planned.version and entry.state == before
        case Preempt():
            # `planned` may have taken it already.
            return entry.state == replace(before, leaving=False)
        case Admit(_, nodes):
            may_start = all(snapshot.meters[key].has(amount) for key, amount in entry.meters)
            return entry.state == before and may_start and _has(snapshot, entry, nodes)
        case Place(_, replica, node):
            return entry.state == before and _has(snapshot, entry, ((replica, node),))
        case _:
            assert_never(decision)


def _has(snapshot: Snapshot, entry: Entry, places: tuple[tuple[ReplicaId, str], ...]) -> bool:
    """Whether the nodes take work, and have what these replicas of it need."""
    free = snapshot.free
    if any(node not in free for _, node in places):
        return False
    if not snapshot.policy.strict:
        return True
    sorts = dict(zip((replica for replica, _ in entry.gang.replicas), entry.kinds, strict=True))
    left: dict[str, Vector] = {}
    for replica, node in places:
        need = sorts[replica].vector(free.layout(node))
        left[node] = plus(left.get(node) or free.vector(node), need, -1)
    # Others may have taken what a replica does not need.
    return all(
        amount >= 0 or amount == before
        for node, vector in left.items()
        for amount, before in zip(vector, free.vector(node), strict=True)
    )
