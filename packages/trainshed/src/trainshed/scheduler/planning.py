"""The plan: the gangs that start, move, are preempted, or can never fit. Pure: the same snapshot and time
give the same plan. A plan consumes the snapshot, so callers pass a copy.

The order is priority, on-demand before spot, fair share, age (spec/queue#order). If a gang does not fit,
later gangs may start before it until it has waited for the policy's `patience`. After that, resources are
reserved for the gang, and later gangs may use only the remaining resources.

At most `MAX_RESERVATIONS` jobs have a reservation at a time. One of these reservations is for the gang with
the longest waiting time. Therefore every job starts eventually if other jobs end, regardless of the fair
share. A used-up quota blocks only jobs of the same project that need the same quota.

The snapshot may have changed during planning, so this module also checks which decisions are still valid.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec.structs import replace

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.units import Nanos
from trainshed.scheduler.entries import Entry, ResourceRequest, assign_replicas, entry_of
from trainshed.scheduler.fair_share import candidates
from trainshed.scheduler.fitting import Need, PlanTransaction, assess, assess_kinds
from trainshed.scheduler.model import Admit, Decision, GangState, Place, Plan, Preempt, StockOut
from trainshed.scheduler.resources import (
    Kind,
    Kinds,
    NodeResources,
    Placement,
    Vector,
    find_placements,
    largest_first,
    plus,
)
from trainshed.scheduler.snapshot import Group, LevelKey, Snapshot, level_of

MAX_RESERVATIONS = 8
MAX_ADMISSIONS = 100
"""Maximum number of jobs that start in one plan, to limit its duration. The next plan follows at once and
starts further jobs."""
MAX_RELOCATIONS = 32
"""Maximum number of replicas without a node for which resources are reserved at a time."""


def plan(snapshot: Snapshot, now: Nanos) -> Plan:
    """Return the decisions at the time `now` (ns), which never decreases between calls. Consumes the
    snapshot, so callers pass a copy."""
    stopped = _stop(snapshot)
    made = _Planner(snapshot, now).plan()
    return replace(made, decisions=(*stopped, *made.decisions))


def _stop(snapshot: Snapshot) -> tuple[Preempt, ...]:
    """Preempt the gangs of projects and users whose hard budget is used up, except the machines of persistent
    resources."""
    reasons = {
        uid: reason
        for key, reason in snapshot.exhausted.items()
        if key in snapshot.stopped and key in snapshot.meters
        for uid in snapshot.meters[key].holders
        if uid not in snapshot.leaving and not snapshot.entries[uid].gang.is_reservation
    }
    for uid in reasons:
        snapshot.put(replace(snapshot.entries[uid].state, leaving=True))
    return tuple(Preempt(uid, reason) for uid, reason in reasons.items())


class _Planner:
    """One pass over the queue. Free amounts only shrink during the pass, so a failed gang is not tried
    again."""

    def __init__(self, snapshot: Snapshot, now: Nanos) -> None:
        self._decisions: list[Decision] = []
        self._snapshot = snapshot
        self._unplaced = [snapshot.entries[age[1]] for _, age in snapshot.unplaced]
        self._transaction = PlanTransaction(snapshot, now)
        self._look_again = self._transaction.next_release
        self._now = now
        #: Requests that do not fit into the unreserved resources.
        self._failed: set[ResourceRequest] = set()
        #: Keys (account, request, spot) for which no possible preemption is sufficient. An account is a
        #: project and a user, or None for all accounts.
        self._hopeless: set[tuple[tuple[str, str] | None, ResourceRequest, bool]] = set()
        #: Requests that this plan can neither start nor help by preemption. It may still reserve resources
        #: for them.
        self._refused: set[ResourceRequest] = set()
        self._preemption = Preemption(snapshot, self._transaction)
        #: The gangs that this plan starts. They count as running.
        self._started: list[Entry] = []
        self._reservations = 0
        self._relocations = 0
        #: The gang with the longest waiting time on the present level. None if all gangs there lack a quota.
        self._eldest: Entry | None = None
        #: Whether no more reservations are allowed, because the reserved resources must leave enough for the
        #: eldest gang.
        self._is_closed = False

    def plan(self) -> Plan:
        """Process all unplaced and waiting gangs, one after the other."""
        for entry in self._unplaced:
            if not entry.gang.spot:
                self._relocate(entry)
        if len(self._snapshot.ready) or (
            self._snapshot.policy.strict and len(self._snapshot.total_resources)
        ):
            self._consider_all()
        reservations = tuple(self._transaction.reservations)
        return Plan(tuple(self._decisions), self._look_again, reservations)

    def _consider_all(self) -> None:
        # Spot gangs that have lost a node are processed in the order of the queue, because other gangs may
        # need the resources more.
        spot = deque(entry for entry in self._unplaced if entry.gang.spot)
        for level in self._snapshot.queue.order:
            while spot and level_of(spot[0]) <= level:
                self._relocate(spot.popleft())
            groups = self._snapshot.queue.levels[level]
            heads = (heads[0] for group in groups.values() for heads in group.heads.values())
            self._eldest = min(filter(self._has_quotas, heads), default=None)
            self._consider_reserved(level, groups)
            self._is_closed = self._lacks_reservable_resources(self._eldest)
            turns = candidates(self._snapshot, groups, self._is_pointless)
            while (entry := turns.head) is not None:
                if len(self._started) == MAX_ADMISSIONS:
                    # This plan has started the maximum number of jobs. The next plan follows at once.
                    self._look_again = self._now
                    return
                turns.advance(provided=self._process(entry))
        for entry in spot:
            self._relocate(entry)

    def _consider_reserved(self, level: LevelKey, groups: dict[str, Group]) -> None:
        """Process the gangs with reservations from the last plan first. Otherwise gangs with a smaller usage
        would repeatedly take these resources."""
        for uid in self._snapshot.reservations:
            entry = self._snapshot.entries.get(uid)
            if entry is None or not entry.waits or level_of(entry) != level:
                continue
            if entry.state.not_before <= self._now:
                groups[entry.gang.project_id].withdraw(entry)
                self._process(entry)

    # --- waiting gangs ---

    def _process(self, entry: Entry) -> bool:
        """Decide on one gang. Return True if it starts now or later, so that the next gang of its shape is
        also processed."""
        missing, possible = assess(self._snapshot, entry.shape.request)
        if missing:
            self._decisions.append(StockOut(entry.gang.uid, missing))
            return True
        if not possible:
            self._refused.add(entry.shape.request)
            return False
        if self._transaction.allows(entry) and self._admit_if_it_fits(entry):
            return True
        if self._transaction.reservations:
            # Plan again when the gang has waited for `patience`, because it may then receive a reservation.
            when = entry.eligible_at + self._snapshot.policy.patience
            if when > self._now and (self._look_again is None or when < self._look_again):
                self._look_again = when
        return self._preempt_or_reserve(entry)

    def _is_pointless(self, entry: Entry) -> bool:
        """Return whether a decision on the gang is pointless: equal gangs were refused, and no reservation
        for it is possible."""
        return entry.shape.request in self._refused and not self._may_reserve(entry)

    def _has_quotas(self, entry: Entry) -> bool:
        meters = ((self._snapshot.meters[key], amount) for key, amount in entry.meters)
        return all(meter.is_exclusive or meter.has(amount) for meter, amount in meters)

    def _lacks_reservable_resources(self, entry: Entry | None) -> bool:
        """Return whether the gang's waiting time is over, but existing reservations leave too few resources
        for a reservation, regardless of how many other gangs end."""
        if entry is None or not self._reservations or not self._is_impatient(entry):
            return False
        need = Need(self._transaction, entry)
        for gang in self._upcoming_ends(entry, quotas_only=False):
            need.add(gang)
        return not need.is_met

    def _is_impatient(self, entry: Entry) -> bool:
        return self._now - entry.eligible_at >= self._snapshot.policy.patience

    def _may_reserve(self, entry: Entry) -> bool:
        if not self._is_impatient(entry):
            return False
        if entry is self._eldest:
            return self._reservations < MAX_RESERVATIONS
        return not self._is_closed and self._reservations < MAX_RESERVATIONS - 1

    def _admit_if_it_fits(self, entry: Entry) -> bool:
        request = entry.shape.request
        if request in self._failed:
            return False
        parts = self._transaction.fit(request.kinds)
        if parts is None:
            self._failed.add(request)
            if not self._preemption.possible:
                self._refused.add(request)
            return False
        self._admit(entry, parts)
        return True

    def _admit(self, entry: Entry, parts: list[Placement]) -> None:
        self._transaction.admit(entry)
        nodes = assign_replicas(entry, parts)
        self._decisions.append(Admit(entry.gang.uid, nodes))
        state = GangState(entry.gang, nodes)
        self._started.append(entry_of(state, entry.shape, entry.kinds, entry.meters))

    def _preempt_or_reserve(self, entry: Entry) -> bool:
        """Help a gang that does not fit now: reserve resources that are being released, preempt spot gangs,
        or reserve resources that become free later. Return True if the gang starts now, or will certainly
        start after a release."""
        reserve = self._may_reserve(entry)
        request, spot = entry.shape.request, entry.gang.spot
        account = (entry.gang.project_id, entry.gang.person)
        keys = ((None, request, spot), (account, request, spot))
        hopeful = self._preemption.possible and self._hopeless.isdisjoint(keys)
        if not (reserve or hopeful):
            return False
        need = Need(self._transaction, entry)
        if need.is_met:
            # Start the gang: it fits, but in another arrangement than the one that was tried first.
            parts = need.places()
            if parts is None or not self._transaction.allows(entry):
                return False
            self._transaction.assign(parts)
            self._admit(entry, parts)
            return True
        if hopeful:
            quotas_met = need.quotas_met
            if self._reserve_freed(entry, need):
                return True
            self._hopeless.add(keys[0] if quotas_met else keys[1])
            if quotas_met and not spot and request in self._failed:
                self._refused.add(request)
        if reserve:
            need = Need(self._transaction, entry)
            if need.short_of_quota:
                # A quota is used up, so reserve only quota amounts. Other projects can use the nodes until
                # the quota is free.
                need = Need(self._transaction, entry, quotas_only=True)
            self._reservations += self._reserve_upcoming(entry, need)
        return False

    def _reserve_freed(self, entry: Entry, need: Need, kinds: Kinds | None = None) -> bool:
        """Reserve resources that are being released, including those of preempted spot gangs. Return whether
        they are sufficient."""
        chosen = self._preemption.find_victims(entry, need, kinds)
        if chosen is None:
            return False
        self._decisions += [
            Preempt(victim.gang.uid, _reason(victim, entry), entry.gang.name) for victim in chosen
        ]
        self._preemption.claim(need.reserve())
        return True

    def _reserve_upcoming(self, entry: Entry, need: Need) -> bool:
        """Reserve the gang's resources for the time after enough other gangs have ended. Return whether that
        is possible."""
        for gang in self._upcoming_ends(entry, quotas_only=need.quotas_only):
            if gang is not entry and need.add(gang) and need.is_met:
                self._preemption.claim(need.reserve())
                return True
        return False

    def _upcoming_ends(self, entry: Entry, *, quotas_only: bool) -> Iterator[Entry]:
        """Yield running gangs in the order of their known ends, starting with gangs that are about to end."""
        leaving, entries = self._preemption.leaving, self._snapshot.entries
        yield from leaving.values()
        running = self._snapshot.releases
        if quotas_only:
            meters = [self._snapshot.meters[key] for key, _ in entry.meters]
            holders = {uid for meter in meters if not meter.is_exclusive for uid in meter.holders}
            running = sorted((entries[uid].free_at, uid) for uid in holders)
        yield from (entries[uid] for _, uid in running if uid not in leaving)
        yield from self._started

    # --- replicas that lost their node ---

    def _relocate(self, entry: Entry) -> None:
        if entry.uid in self._preemption.leaving:
            return
        kinds, lost = entry.kinds_by_replica(), dict(entry.state.unplaced)
        for replica in sorted(lost, key=lambda replica: (*largest_first(kinds[replica]), replica)):
            node = self._place(entry, kinds[replica], lost[replica])
            if node is not None:
                self._decisions.append(Place(entry.gang.uid, replica, node))

    def _place(self, entry: Entry, kind: Kind, lost: str | None) -> str | None:
        """Return another node for one replica, or its former node if no other node has space. Otherwise,
        reserve resources for it with priority over later gangs."""
        kinds, fit = ((kind, 1),), self._transaction.fit
        missing, possible = assess_kinds(self._snapshot, kinds)
        if missing:
            self._decisions.append(StockOut(entry.gang.uid, missing))
        if not possible:
            return None
        if parts := fit(kinds, without=lost) or fit(kinds):
            return parts[0].node
        self._relocations += 1
        if self._relocations <= MAX_RELOCATIONS and not self._reserve_freed(
            entry, Need(self._transaction, entry, kinds), kinds
        ):
            self._reserve_upcoming(entry, Need(self._transaction, entry, kinds))
        return None


def _reason(victim: Entry, entry: Entry) -> str:
    """Return the reason for a preemption, as readers of the preempted job see it. Jobs of other projects are
    not identified, because these readers may not see them."""
    is_own = victim.gang.project_id == entry.gang.project_id
    return f"its capacity went to {entry.gang.name if is_own else 'a job of another project'}"


_MAX_CHECKED = 256
"""Maximum number of spot gangs that are checked for each need. If there are more, only the most suitable ones
are checked."""


class Preemption:
    """Chooses the spot gangs to preempt for on-demand gangs: a sufficient set, with the lowest priority and
    the youngest first. Includes capacity that is already being released."""

    def __init__(self, snapshot: Snapshot, transaction: PlanTransaction) -> None:
        self._snapshot = snapshot
        self._transaction = transaction
        #: Gangs whose resources will be released, including gangs that this plan preempts.
        self.leaving = dict(sorted(snapshot.leaving.items()))
        self._spot = [snapshot.entries[JobUid(-uid)] for _, _, uid in snapshot.spot]
        self._most: NodeResources | None = None

    @property
    def possible(self) -> bool:
        return bool(self.leaving or self._spot)

    def find_victims(self, entry: Entry, need: Need, kinds: Kinds | None) -> list[Entry] | None:
        """Return the gangs to preempt so that the gang, or only its replicas `kinds`, can start.

        The result is [] if released resources are already sufficient, and None if no preemption is
        sufficient. Afterwards `need` simulates the release of all these gangs.
        """
        # In relaxed mode, nodes have no capacities, so the best case excludes no gang.
        if self._transaction.strict and not self._best_places(entry, kinds):
            return None
        for gang in self.leaving.values():
            need.add(gang)
        if need.is_met:
            return []
        chosen = victims(need, self._candidates(entry, kinds)) if not entry.gang.spot else None
        for victim in chosen or ():
            self.leaving[victim.gang.uid] = victim
        return chosen

    def claim(self, parts: Sequence[Placement]) -> None:
        """Record the reserved resources of these placements, so that no other gang can use them."""
        if self._most is not None:
            for part in parts:
                self._most.subtract(part.node, part.kind, part.count)

    def _candidates(self, entry: Entry, kinds: Kinds | None) -> list[Entry]:
        """Return the spot gangs that may be preempted. Gangs with a higher priority are not included, because
        they would take the resources again. If there are many gangs, return only the gangs on the most
        suitable nodes or with a scarce quota."""
        spots = [
            spot
            for spot in self._spot
            if spot.gang.priority <= entry.gang.priority
            and spot.gang.uid not in self.leaving
            and spot is not entry
        ]
        if len(spots) <= _MAX_CHECKED:
            return spots
        if not self._transaction.strict:
            return spots[:_MAX_CHECKED]
        nodes = {part.node for part in self._best_places(entry, kinds)}
        short = [
            self._snapshot.meters[key]
            for key, amount in entry.meters
            if not kinds and self._transaction.free_quota(key) < amount
        ]
        return [
            spot
            for spot in spots
            if not nodes.isdisjoint(spot.kinds_by_node) or any(spot.gang.uid in m.holders for m in short)
        ]

    def _best_places(self, entry: Entry, kinds: Kinds | None) -> list[Placement]:
        """Return the placements that the gang would have if no spot gangs existed, or [] if it would not fit
        even then. The result is only a first check, because some spot gangs may not be preempted."""
        if self._most is None:
            with self._transaction.with_extra({}) as free:
                self._most = free.copy()
            for gang in (*self.leaving.values(), *self._spot):
                for node, held in gang.kinds_by_node.items():
                    for kind in held if node in self._most else ():
                        self._most.subtract(node, kind, -1)
        return find_placements(self._most, kinds or entry.shape.kinds) or []


def victims(need: Need, candidates: Sequence[Entry]) -> list[Entry] | None:
    """Return the gangs to preempt: the cheapest sufficient set. Return None if all candidates together are
    not sufficient.

    Unnecessary gangs are removed from the set, the most expensive first. `need` must already simulate the
    release of leaving gangs. Afterwards it also simulates the release of the victims. `candidates` are sorted
    by ascending cost.
    """
    chosen: list[Entry] = []
    for entry in candidates:
        if need.add(entry):
            chosen.append(entry)
            if need.is_met:
                break
    else:
        for entry in chosen:
            need.add(entry, -1)
        return None
    for entry in chosen[::-1]:
        need.add(entry, -1)
        if need.is_met:
            chosen.remove(entry)
        else:
            need.add(entry)
    return chosen


NEVER = 2**62
"""The value of `not_before` for a gang after its stock-out. The gang still exists until the job has ended,
and must not be refused again."""


def state_after(before: GangState, decision: Decision) -> GangState:
    """Return the state of a gang after a decision about it."""
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


def is_still_valid(snapshot: Snapshot, planned: Snapshot, decision: Decision) -> bool:
    """Return whether a decision on a copy of the snapshot is still valid: the gang has the same placement,
    and its resources are available. `planned`: the snapshot of the decision."""
    entry = snapshot.entries.get(decision.uid)
    before = planned.entries[decision.uid].state
    if entry is None:
        return False
    match decision:
        case StockOut():
            return snapshot.version == planned.version and entry.state == before
        case Preempt():
            # `planned` may contain the state after this decision, in which `leaving` is set.
            return entry.state == replace(before, leaving=False)
        case Admit(_, nodes):
            may_start = all(snapshot.meters[key].has(amount) for key, amount in entry.meters)
            return entry.state == before and may_start and _has(snapshot, entry, nodes)
        case Place(_, replica, node):
            return entry.state == before and _has(snapshot, entry, ((replica, node),))
        case _:
            assert_never(decision)


def _has(snapshot: Snapshot, entry: Entry, places: tuple[tuple[ReplicaId, str], ...]) -> bool:
    """Return whether the nodes accept replicas and have the resources that these replicas of the gang
    need."""
    free = snapshot.free
    if any(node not in free for _, node in places):
        return False
    if not snapshot.policy.strict:
        return True
    kinds = entry.kinds_by_replica()
    left: dict[str, Vector] = {}
    for replica, node in places:
        need = kinds[replica].vector(free.layout(node))
        left[node] = plus(left.get(node) or free.vector(node), need, -1)
    # Other gangs may have taken resources that the replica does not need.
    return all(
        amount >= 0 or amount == before
        for node, vector in left.items()
        for amount, before in zip(vector, free.vector(node), strict=True)
    )
