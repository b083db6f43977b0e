"""The decision: who starts, who gets another place, who yields, what can never be. Pure.

The order is priority, on-demand before spot, fair share, age (SPEC §2, "Queue"). Whoever does not fit may be
overtaken for as long as the policy's patience lasts; then what it needs is kept for it against all that come after it,
unless they are certain to be over before it could start, or use what it does not need. So with jobs that end, every
job starts. Room is kept for at most `RESERVATIONS` jobs at a time; the others' turn to have it kept comes with time.

A quota that is used up holds back nobody but jobs of the same project that want the same quota.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge

from trainshed.core.names import ReplicaId
from trainshed.scheduler.books import Entry, Kept, Pack, named
from trainshed.scheduler.model import Admit, Decision, Place, Plan, Preempt, Standing, StockOut
from trainshed.scheduler.needs import Need
from trainshed.scheduler.rooms import ENDLESS, Kind, Kinds, Part
from trainshed.scheduler.scratch import Scratch
from trainshed.scheduler.snapshot import Snapshot
from trainshed.scheduler.turns import Turns
from trainshed.scheduler.verdicts import verdict, verdict_of
from trainshed.scheduler.yielding import Preemption

RESERVATIONS = 8
ADMISSIONS = 2000
"""So many jobs start by one plan, which bounds how long it takes; the others by the next, which follows at once."""
REHOUSINGS = 32
"""For so many replicas that lost their place, and find none, room is kept at a time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan, and for whom it kept room."""

    plan: Plan
    kept: tuple[Kept, ...]


def plan(snapshot: Snapshot, now: int) -> Plan:
    """What is to be done now. `now`: ns, never less than in an earlier call. The snapshot is afterwards as it was;
    the same snapshot and moment give the same plan."""
    return decide(snapshot, now).plan


def decide(snapshot: Snapshot, now: int) -> Outcome:
    """The plan with its grounds."""
    look_again = snapshot.queue.ripen(now)
    scratch = Scratch(snapshot, now)
    decision = _Decision(snapshot, scratch, now, look_again)
    try:
        decision.make()
    finally:
        scratch.undo()
    snapshot.kept = tuple(scratch.kept)
    return Outcome(Plan(tuple(decision.made), decision.look_again), tuple(scratch.kept))


class _Decision:
    """One pass. Room only shrinks in its course, so what failed once need not be tried again."""

    def __init__(self, snapshot: Snapshot, scratch: Scratch, now: int, look_again: int) -> None:
        self.made: list[Decision] = []
        self.look_again = look_again
        self._snapshot = snapshot
        self._scratch = scratch
        self._now = now
        self._failed: dict[Pack, set[int]] = {}
        self._hopeless: set[tuple[str, Pack, bool]] = set()
        self._dead: set[Pack] = set()
        self._preemption = Preemption(snapshot, scratch)
        self._admitted: list[tuple[Entry, Admit]] = []
        self._begun: list[Entry] = []
        self._reservations = 0
        self._rehousings = 0

    def make(self) -> None:
        for _, age in self._snapshot.homeless:
            self._rehouse(self._snapshot.entries[age[1]])
        if not self._snapshot.loads and not (
            self._snapshot.policy.strict and len(self._snapshot.known)
        ):
            return
        for level in list(self._snapshot.queue.order):
            groups = self._snapshot.queue.levels[level]
            turns = Turns(self._snapshot, groups, self._now, self._is_in_vain)
            while (entry := turns.peek()) is not None:
                if len(self._admitted) == ADMISSIONS:
                    self.look_again = self._now  # the next plan goes on here
                    return
                turns.advance(provided=self._consider(entry))

    # Gangs that wait

    def _consider(self, entry: Entry) -> bool:
        """One gang's turn. True: it is provided for, and the next of its shape has its turn, too."""
        missing, possible = verdict(self._snapshot, entry.shape.pack)
        if missing:
            self.made.append(StockOut(entry.gang.uid, missing))
            return True
        if not possible:
            self._dead.add(entry.shape.pack)
            return False
        self._scratch.held = False
        if self._scratch.lets(entry) and self._fits(entry):
            return True
        if self._scratch.held:
            self._wake_when_impatient(entry)
        return self._hold(entry)

    def _is_in_vain(self, entry: Entry) -> bool:
        """Whether nothing can come of looking at it (again): gangs that need the same were refused, or too many replicas
        run and none of them gives way; and no room is kept for it."""
        refused = entry.shape.pack in self._dead or self._is_crowded_out(entry)
        return refused and not self._may_reserve(entry)

    def _is_crowded_out(self, entry: Entry) -> bool:
        """Seen at a glance, as in relaxed mode nearly all that wait do so for this reason."""
        meter, amount = entry.meters[-1]
        if meter.limit is None or self._preemption.possible:
            return False
        return not meter.lets(amount, meter.limit - meter.used, meter.used)

    def _may_reserve(self, entry: Entry) -> bool:
        waited = self._now - entry.ripe_at
        return waited >= self._snapshot.policy.patience and self._reservations < RESERVATIONS

    def _fits(self, entry: Entry) -> bool:
        shape = entry.shape
        failed = self._failed.setdefault(shape.pack, set())
        if 0 in failed or shape.longest in failed:
            return False
        parts = self._scratch.fit(shape.kinds, self._scratch.ends(entry))
        if parts is None:
            failed.add(shape.longest if self._scratch.held else 0)
            if not self._scratch.held and not self._preemption.possible:
                self._dead.add(shape.pack)
            return False
        self._admit(entry, parts)
        return True

    def _admit(self, entry: Entry, parts: list[Part]) -> None:
        self._scratch.admit(entry)
        admitted = Admit(entry.gang.uid, named(entry, parts))
        self.made.append(admitted)
        self._admitted.append((entry, admitted))

    def _hold(self, entry: Entry) -> bool:
        """It does not fit now: room that comes back anyway is kept for it, or room is made, or, when it has waited too
        long, kept as it comes free. True: it starts after all, or is sure to as soon as that room is there."""
        reserve = self._may_reserve(entry)
        pack, spot = entry.shape.pack, entry.gang.spot
        keys = (("", pack, spot), (entry.gang.project_id, pack, spot))
        hopeful = self._preemption.possible and self._hopeless.isdisjoint(keys)
        if not (reserve or hopeful):
            return False
        need = Need(self._scratch, entry)
        if need.met:  # in another arrangement than the first that comes to mind
            return self._arrange(entry, need)
        if hopeful:
            quotas_met = need.quotas_met
            if self._comes(entry, need):
                return True
            self._hopeless.add(keys[0] if quotas_met else keys[1])
            if quotas_met and not spot and 0 in self._failed.get(pack, ()):
                self._dead.add(pack)
        if reserve:
            self._reserve(entry)
        return False

    def _arrange(self, entry: Entry, need: Need) -> bool:
        parts = need.places()
        if parts is None or not self._scratch.lets(entry):
            return False
        for part in parts:
            self._scratch.take(part)
        self._admit(entry, parts)
        return True

    def _comes(self, entry: Entry, need: Need, kinds: Kinds | None = None) -> bool:
        """Whether room that is being given back will do, or room that spot work is now asked for; it is kept then."""
        chosen = self._preemption.room_for(entry, need, kinds)
        if chosen is None:
            return False
        self.made += [Preempt(victim.gang.uid, entry.gang.name) for victim in chosen]
        self._preemption.claim(need.keep(0))
        return True

    def _reserve(self, entry: Entry) -> None:
        """Keep what it needs from the earliest moment on at which it could start, as far as that is known."""
        need = Need(self._scratch, entry)
        if need.short_of_quota:
            need = Need(self._scratch, entry, quotas_only=True)
        self._reservations += self._await(entry, need, quotas_only=need.quotas_only)

    def _await(self, entry: Entry, need: Need, *, quotas_only: bool = False) -> bool:
        """Whether there is a moment known or not, by which it has what it needs; that is kept then."""
        at = self._now
        for when, gang in self._over(entry, quotas_only=quotas_only):
            if gang is entry or not need.add(gang):
                continue
            at = max(at, when)
            if need.met:
                self._preemption.claim(need.keep(at if at < ENDLESS else 0))
                return True
        return False

    def _over(self, entry: Entry, *, quotas_only: bool) -> Iterator[tuple[int, Entry]]:
        """Running gangs in the order in which they are over, those first that are about to be."""
        leaving = self._preemption.leaving
        for gang in leaving.values():
            yield 0, gang
        entries = self._snapshot.entries
        running = self._snapshot.releases
        if quotas_only:
            holders = {uid for meter, _ in entry.meters if not meter.alone for uid in meter.holders}
            running = sorted((entries[uid].over_at, uid) for uid in holders)
        before = ((when, entries[uid]) for when, uid in running if uid not in leaving)
        begun = sorted(((gang.over_at, gang) for gang in self._begun_now()), key=_by_end)
        yield from merge(before, begun, key=_by_end)

    def _begun_now(self) -> list[Entry]:
        """The gangs that start with this decision, as if they ran already."""
        for entry, admitted in self._admitted[len(self._begun) :]:
            ends = self._scratch.ends(entry)
            until = ends if ends < ENDLESS else 0
            standing = Standing(entry.gang, places=admitted.nodes, until=until)
            self._begun.append(self._snapshot.entry(standing))
        return self._begun

    def _wake_when_impatient(self, entry: Entry) -> None:
        """It would fit, were it not for one that comes before it: that may change when it has waited long enough."""
        when = entry.ripe_at + self._snapshot.policy.patience
        if when > self._now and (not self.look_again or when < self.look_again):
            self.look_again = when

    # Replicas that lost their place

    def _rehouse(self, entry: Entry) -> None:
        sorts = dict(zip((r for r, _ in entry.gang.replicas), entry.kinds, strict=True))
        lost = dict(entry.standing.homeless)
        for kinds in _largest_first([(sorts[replica], replica) for replica in lost]):
            kind, replica = kinds
            node = self._place(entry, kind, lost[replica])
            if node is not None:
                self.made.append(Place(entry.gang.uid, replica, node))

    def _place(self, entry: Entry, kind: Kind, lost: str) -> str | None:
        """Another place for one replica: on another node, else where it was, if that takes work; while there is none,
        room is kept for it before all that wait."""
        if not self._scratch.strict:
            others = any(node != lost for _, node in self._snapshot.loads)
            return self._scratch.least_loaded(lost if others else "")
        missing, possible = verdict_of(self._snapshot, ((kind, 1),))
        if missing:
            self.made.append(StockOut(entry.gang.uid, missing))
        if not possible:
            return None
        hidden = self._scratch.hide((lost,))
        self._scratch.avoid = lost
        try:
            parts = self._scratch.fit(((kind, 1),), ENDLESS)
        finally:
            self._scratch.avoid = ""
            self._scratch.show(hidden)
        return parts[0].node if parts else self._find_place(entry, ((kind, 1),))

    def _find_place(self, entry: Entry, kinds: Kinds) -> str | None:
        parts = self._scratch.fit(kinds, ENDLESS)
        if parts is not None:
            return parts[0].node
        self._rehousings += 1
        if self._rehousings <= REHOUSINGS and not self._comes(
            entry, Need(self._scratch, entry, kinds), kinds
        ):
            self._await(entry, Need(self._scratch, entry, kinds))
        return None


def _by_end(item: tuple[int, Entry]) -> tuple[int, int]:
    return (item[0], item[1].gang.uid)


def _largest_first(items: list[tuple[Kind, ReplicaId]]) -> list[tuple[Kind, ReplicaId]]:
    def size(item: tuple[Kind, ReplicaId]) -> tuple[int, int, int, ReplicaId]:
        demand = item[0].demand
        return (-demand.accelerators, -item[0].cpus, -demand.memory_bytes, item[1])

    return sorted(items, key=size)
