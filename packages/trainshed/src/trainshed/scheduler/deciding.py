"""What the controller asks the scheduler: all decisions about a copy of its snapshot; what a decision makes
of a gang; and whether it still holds for the snapshot itself, which may have changed meanwhile.
"""

from typing import assert_never

from msgspec.structs import replace

from trainshed.core.capacity import QuotaKey
from trainshed.core.names import ReplicaId
from trainshed.core.units import Nanos
from trainshed.scheduler.entries import Entry
from trainshed.scheduler.explaining import SECOND, why
from trainshed.scheduler.feasibility import assess
from trainshed.scheduler.model import (
    Admit,
    Decision,
    FallBack,
    GangState,
    Place,
    Plan,
    Preempt,
    StockOut,
    with_choice,
)
from trainshed.scheduler.planning import plan
from trainshed.scheduler.resources import Placement, Vector, find_placements, plus
from trainshed.scheduler.snapshot import Snapshot

NEVER = 2**62
"""`not_before` of a gang that is refused for good and still there: it is not refused twice."""


def decide(snapshot: Snapshot, now: Nanos) -> Plan:
    """Return what is to be done at `now` (ns, never less than in an earlier call): which gangs take another
    of their choices, and then the plan. Uses up the snapshot: give it a copy."""
    fallen, soonest = fall_backs(snapshot, now)
    for decision in fallen:
        snapshot.put(state_after(snapshot.entries[decision.uid].state, decision))
    made = plan(snapshot, now)
    moments = [at for at in (soonest, made.look_again) if at]
    return Plan((*fallen, *made.decisions), min(moments, default=0), made.reservations)


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
        case FallBack(_, choice):
            return replace(before, gang=with_choice(before.gang, choice), not_before=0)
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
        case FallBack():
            # `planned` has taken it already.
            is_same_world = snapshot.version == planned.version
            return is_same_world and state_after(entry.state, decision) == before
        case StockOut():
            return snapshot.version == planned.version and entry.state == before
        case Preempt():
            return entry.state == before
        case Admit(_, nodes):
            return (
                entry.state == before and _allows(snapshot, entry) and _has(snapshot, entry, nodes)
            )
        case Place(_, replica, node):
            return entry.state == before and _has(snapshot, entry, ((replica, node),))
        case _:
            assert_never(decision)


def _allows(snapshot: Snapshot, entry: Entry) -> bool:
    """Whether quotas and the number of replicas let it start."""
    for key, amount in entry.meters:
        meter = snapshot.meters[key]
        if meter.limit is not None and not meter.allows(
            amount, meter.limit - meter.used, meter.used
        ):
            return False
    return True


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


MOST = 256
"""Most gangs looked at for one plan, the oldest first: a plan's cost must not grow with all that wait."""


def fall_backs(snapshot: Snapshot, now: Nanos) -> tuple[tuple[FallBack, ...], int]:
    """Return which gangs fall back to what, and when the passing of time alone may make another one do so
    (ns, 0 = never). The snapshot is afterwards as it was."""
    pass_ = _Pass(snapshot, now)
    for entry in snapshot.flexible[:MOST]:
        pass_.look_at(entry)
    snapshot.free.give_back(pass_.taken)
    return tuple(pass_.found), pass_.look_again


class _Pass:
    def __init__(self, snapshot: Snapshot, now: Nanos) -> None:
        self.found: list[FallBack] = []
        self.look_again = 0
        #: Places that gangs get by falling back: no other gang may count on them.
        self.taken: list[Placement] = []
        self._snapshot = snapshot
        self._now = now
        self._used: dict[QuotaKey, int] = {}

    def look_at(self, entry: Entry) -> None:
        missing, _ = assess(self._snapshot, entry.shape.request)
        due = entry.eligible_at + entry.gang.patience
        if missing:
            self._take_another(entry, missing)
        elif due > self._now:
            self.look_again = min(self.look_again or due, due)
        elif self._places(entry) is None:
            self._take_another(entry, "")

    def _take_another(self, entry: Entry, missing: str) -> None:
        """Take the first choice that is free now. If none is, and the gang can never start as it is, take the
        first that ever could."""
        others = [
            self._snapshot.entry(GangState(with_choice(entry.gang, other.choice)))
            for other in entry.gang.alternatives
        ]
        possible = [
            candidate
            for candidate in others
            if not assess(self._snapshot, candidate.shape.request)[0]
        ]
        for other in possible:
            places = self._places(other)
            if places is not None:
                for part in places:
                    self._snapshot.free.take(part.node, part.kind, part.count)
                self.taken += places
                for key, amount in other.meters:
                    self._used[key] = self._used.get(key, 0) + amount
                self._decide(entry, other, missing)
                return
        if missing and possible:
            self._decide(entry, possible[0], missing)

    def _decide(self, entry: Entry, other: Entry, missing: str) -> None:
        reason = missing
        if not reason:
            waiting = why(self._snapshot, entry.gang.uid, self._now)
            seconds = (self._now - entry.eligible_at) // SECOND
            because = f": {waiting.message}" if waiting else ""
            reason = f"has waited {seconds} s{because}"
        self.found.append(FallBack(entry.gang.uid, other.gang.choice, reason))

    def _places(self, entry: Entry) -> list[Placement] | None:
        """Return where it would go now, whosever turn it is; None if it cannot start now."""
        for key, amount in entry.meters:
            meter = self._snapshot.meters[key]
            used = meter.used + self._used.get(key, 0)
            if meter.limit is not None and not meter.allows(amount, meter.limit - used, used):
                return None
        if not self._snapshot.policy.strict:
            return [] if self._snapshot.loads else None
        return find_placements(self._snapshot.free, entry.shape.kinds)
