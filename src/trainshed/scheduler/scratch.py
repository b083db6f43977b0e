"""What is free in the course of one decision: what it gives away, and what it keeps for those that come before.

Works on the snapshot's own books and puts everything back at the end: a copy of ten thousand nodes would cost
more than the decision.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass

from trainshed.scheduler.books import Entry, Kept, Meter
from trainshed.scheduler.rooms import (
    ENDLESS,
    Kind,
    Kinds,
    Layout,
    Part,
    Vector,
    orders,
    plus,
    slots,
)
from trainshed.scheduler.snapshot import Snapshot


@dataclass(slots=True)
class RoomGuard:
    """Room on a node is kept from `at` on (ns, 0 = at no known time). `spare`: what others may have of it beyond that."""

    at: int
    spare: Vector


@dataclass(slots=True)
class MeterGuard:
    """The same for a quota or the number of replicas."""

    at: int
    spare: int


Hidden = tuple[str, Layout, Vector]
"""A node that is out of sight for a while."""


class Scratch:
    """The state of one decision. `held`: whether room was refused since only because it is kept for another.
    `avoid`: a node that will not do at the moment."""

    def __init__(self, snapshot: Snapshot, now: int) -> None:
        self.snapshot = snapshot
        self.now = now
        self.strict = snapshot.policy.strict
        self.free = snapshot.free
        self.kept: list[Kept] = []
        self.held = False
        self.avoid = ""
        self._admitted: list[Entry] = []
        self._origin: dict[str, tuple[Layout, Vector]] = {}
        self._guards: dict[str, list[RoomGuard]] = {}
        self._guarded: dict[str, tuple[Layout, Vector]] = {}
        self._claims: dict[str, Vector] = {}
        self._meter_guards: dict[Meter, list[MeterGuard]] = {}
        self._meter_claims: dict[Meter, int] = {}
        self._loads = snapshot.loads.copy() if not self.strict else []

    def undo(self) -> None:
        """Put the snapshot's books back."""
        for name in self._guarded:
            self.free.add(name, *self._guarded[name])
        for name, (_, vector) in self._origin.items():
            if self.free.vector(name) != vector:
                self.free.move(name, vector)
        for entry in self._admitted:
            entry.project.add(entry.takes, -1)
            for meter, amount in entry.meters:
                meter.used -= amount

    def ends(self, entry: Entry) -> int:
        """When a gang that starts now is over at the latest (ns)."""
        return self.now + entry.shape.longest if entry.shape.longest else ENDLESS

    # What is free of a quota

    def left(self, meter: Meter) -> int:
        """What is free of a meter beyond what is kept of it."""
        if meter.limit is None:
            return ENDLESS
        return meter.limit - meter.used - self._meter_claims.get(meter, 0)

    def lets(self, entry: Entry) -> bool:
        """Whether quotas and the number of replicas let it start now."""
        for meter, amount in entry.meters:
            if meter.limit is None:
                continue
            if not meter.lets(amount, meter.limit - meter.used, meter.used):
                return False
            for guard in self._meter_guards.get(meter, ()):
                if _outlasts(self.ends(entry), guard.at) and amount > guard.spare:
                    self.held = True
                    return False
        return True

    # What is free on nodes

    def fit(self, kinds: Kinds, ends: int) -> list[Part] | None:
        """Take places for a whole gang, or none. In relaxed mode dealt evenly, the least loaded nodes first."""
        if not self.strict:
            return self._deal(kinds)
        for order in orders(kinds):
            parts: list[Part] = []
            if not any(self._place(kind, count, ends, parts) for kind, count in order):
                return parts
            self.give_back(parts, ends)
        return None

    def take(self, part: Part, ends: int = ENDLESS) -> None:
        """Take a place that is known to be free."""
        if not self.strict:
            return
        if part.node not in self._guarded:
            self._note(part.node)
            self.free.take(part.node, part.kind, part.count)
            return
        layout, vector = self._guarded[part.node]
        need = part.kind.vector(layout)
        self._guarded[part.node] = (layout, plus(vector, need, -part.count))
        for guard in self._guards[part.node]:
            if _outlasts(ends, guard.at):
                guard.spare = plus(guard.spare, need, -part.count)

    def give_back(self, parts: list[Part], ends: int) -> None:
        """The opposite of `take`, for work that was to be over at `ends`."""
        for part in parts:
            self.take(Part(part.node, part.kind, -part.count), ends)

    def admit(self, entry: Entry) -> None:
        """It starts: its project and its quotas are charged."""
        self._admitted.append(entry)
        entry.project.add(entry.takes, 1)
        for meter, amount in entry.meters:
            meter.used += amount
            for guard in self._meter_guards.get(meter, ()):
                if _outlasts(self.ends(entry), guard.at):
                    guard.spare -= amount

    def base(self, node: str) -> tuple[Layout, Vector] | None:
        """What is free on a node beyond all that is kept on it, None if it takes no work. May be below zero."""
        if node == self.avoid:
            return None
        if node in self._guarded:
            layout, vector = self._guarded[node]
            claim = self._claims.get(node)
            return (layout, plus(vector, claim, -1) if claim else vector)
        if node in self.free:
            return self.free.layout(node), self.free.vector(node)
        return None

    def count(self, kind: Kind, most: int) -> int:
        """How many replicas of a sort would fit beyond what is kept, `most` at most."""
        parts: list[Part] = []
        left = self.free.fill(kind, most, parts)
        self.free.give_back(parts)
        for node in self._guarded:
            if not left:
                break
            found = self.base(node)
            if found and kind.suits(found[0]):
                left -= min(left, slots(found[1], kind.vector(found[0])))
        return most - left

    def keep(
        self,
        entry: Entry,
        at: int,
        parts: list[Part],
        extra: dict[str, Vector],
        spares: list[tuple[Meter, int]],
    ) -> None:
        """Keep places and quotas for a gang. `extra`: what comes free on nodes until then; `spares`: what is left of
        its meters then."""
        self.kept.append(Kept(entry, at))
        by_node: dict[str, list[Part]] = {}
        for part in parts:
            by_node.setdefault(part.node, []).append(part)
        for node, here in by_node.items():
            found = self.base(node)
            assert found is not None
            layout, base = found
            claim = (0,) * len(base)
            for part in here:
                claim = plus(claim, part.kind.vector(layout), part.count)
            spare = plus(plus(base, extra[node]) if node in extra else base, claim, -1)
            self._guards.setdefault(node, []).append(RoomGuard(at, spare))
            old = self._claims.get(node)
            self._claims[node] = plus(old, claim) if old else claim
            if node not in self._guarded:
                self._guarded[node] = (layout, self._release(node))
        for meter, spare in spares:
            self._meter_guards.setdefault(meter, []).append(MeterGuard(at, spare))
        for meter, amount in entry.meters:
            if any(meter is kept for kept, _ in spares):
                self._meter_claims[meter] = self._meter_claims.get(meter, 0) + amount

    @property
    def guarded(self) -> Iterable[str]:
        """Nodes on which room is kept."""
        return self._guarded.keys()

    def hide(self, nodes: Iterable[str]) -> list[Hidden]:
        """Take nodes that nothing is kept on out of sight; what is returned goes to `show`."""
        hidden: list[Hidden] = []
        for node in nodes:
            if node in self.free:
                hidden.append((node, self.free.layout(node), self.free.vector(node)))
                self.free.discard(node)
        return hidden

    def show(self, hidden: list[Hidden]) -> None:
        for node, layout, vector in hidden:
            self.free.add(node, layout, vector)

    def least_loaded(self, without: str) -> str | None:
        """Relaxed mode: where one more replica goes. It is counted there."""
        for at, (load, node) in enumerate(self._loads):
            if node != without:
                del self._loads[at]
                self._add_load(load + 1, node)
                return node
        return None

    def _place(self, kind: Kind, count: int, ends: int, parts: list[Part]) -> int:
        while count and (node := self.free.best(kind)) is not None:
            need = kind.vector(self.free.layout(node))
            here = min(count, slots(self.free.vector(node), need))
            self.take(Part(node, kind, here))
            parts.append(Part(node, kind, here))
            count -= here
        return self._place_guarded(kind, count, ends, parts) if count and self._guarded else count

    def _place_guarded(self, kind: Kind, count: int, ends: int, parts: list[Part]) -> int:
        for node, (layout, vector) in list(self._guarded.items()):
            if not count:
                break
            if node == self.avoid or not kind.suits(layout):
                continue
            need = kind.vector(layout)
            here = min(count, slots(vector, need))
            for guard in self._guards[node]:
                if here and _outlasts(ends, guard.at):
                    allowed = slots(guard.spare, need)
                    self.held = self.held or allowed < here
                    here = min(here, allowed)
            if here:
                part = Part(node, kind, here)
                self.take(part, ends)
                parts.append(part)
                count -= here
        return count

    def _note(self, node: str) -> None:
        if node not in self._origin:
            self._origin[node] = (self.free.layout(node), self.free.vector(node))

    def _release(self, node: str) -> Vector:
        """Take a node that is to be guarded out of the index."""
        self._note(node)
        vector = self.free.vector(node)
        self.free.discard(node)
        return vector

    def _deal(self, kinds: Kinds) -> list[Part] | None:
        if not self._loads:
            return None
        size = sum(count for _, count in kinds)
        chosen = self._loads[:size]
        del self._loads[: len(chosen)]
        rounds, more = divmod(size, len(chosen))
        for at, (load, node) in enumerate(chosen):
            self._add_load(load + rounds + (at < more), node)
        return [Part(chosen[at % len(chosen)][1], kinds[0][0], 1) for at in range(size)]

    def _add_load(self, load: int, node: str) -> None:
        insort(self._loads, (load, node))


def _outlasts(ends: int, at: int) -> bool:
    """Whether work that is over at `ends` could be in the way of what is kept from `at` on."""
    return at == 0 or ends > at
