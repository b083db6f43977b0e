"""What is free in the course of one plan: what it gives away, what it reserves, what a gang still lacks."""

from bisect import insort
from collections.abc import Iterable

from msgspec import Struct

from trainshed.core.capacity import QuotaKey
from trainshed.core.units import Nanos
from trainshed.scheduler.entries import Entry
from trainshed.scheduler.model import Reservation
from trainshed.scheduler.resources import (
    ENDLESS,
    Kind,
    Kinds,
    Layout,
    Placement,
    Vector,
    count_fitting,
    placement_orders,
    plus,
)
from trainshed.scheduler.snapshot import Snapshot


class NodeGuard(Struct):
    """A reservation of resources of a node."""

    #: From this moment on (ns), 0 = at no known time.
    at: Nanos
    #: What others may have of the node beyond that.
    spare: Vector


class MeterGuard(Struct):
    """A reservation of a part of a quota, or of the number of replicas."""

    #: From this moment on (ns), 0 = at no known time.
    at: Nanos
    #: What others may have of it beyond that, in thousandths.
    spare: int


Hidden = tuple[str, Layout, Vector]
"""A node that is hidden for a while."""


class PlanTransaction:
    """The changes of one plan to its snapshot, which is used up by them."""

    def __init__(self, snapshot: Snapshot, now: Nanos) -> None:
        self.snapshot = snapshot
        self.now = now
        self.strict = snapshot.policy.strict
        self.free = snapshot.free
        self.reservations: list[Reservation] = []
        #: Set when something is refused only because it is reserved for another.
        self.held_back = False
        #: A node that must not be used at the moment; "" = none.
        self.avoid = ""
        #: When the next back-off is over (ns), 0 = there is none.
        self.next_release = snapshot.queue.release_due(now)
        self._guards: dict[str, list[NodeGuard]] = {}
        self._guarded: dict[str, tuple[Layout, Vector]] = {}
        #: The most of each that is free on any guarded node of a layout; None = not known since one changed.
        self._most_guarded: dict[Layout, Vector] | None = None
        self._claims: dict[str, Vector] = {}
        self._meter_guards: dict[QuotaKey, list[MeterGuard]] = {}
        self._meter_claims: dict[QuotaKey, int] = {}
        self._loads = snapshot.loads

    def ends(self, entry: Entry) -> int:
        """Return when a gang that starts now is over at the latest (ns)."""
        return self.now + entry.shape.longest if entry.shape.longest else ENDLESS

    # What is free of a quota

    def left(self, key: QuotaKey) -> int:
        """Return what is free of a meter beyond what is reserved of it."""
        meter = self.snapshot.meters[key]
        if meter.limit is None:
            return ENDLESS
        return meter.limit - meter.used - self._meter_claims.get(key, 0)

    def reserves(self, key: QuotaKey) -> bool:
        """Whether some of a quota is kept free for a gang."""
        return key in self._meter_guards

    def allows(self, entry: Entry) -> bool:
        """Whether quotas and the number of replicas let it start now."""
        for key, amount in entry.meters:
            if not self.snapshot.meters[key].has(amount):
                return False
            for guard in self._meter_guards.get(key, ()):
                if _outlasts(self.ends(entry), guard.at) and amount > guard.spare:
                    self.held_back = True
                    return False
        return True

    # What is free on nodes

    def fit(self, kinds: Kinds, ends: int) -> list[Placement] | None:
        """Take places for a whole gang; None if it does not fit. In relaxed mode replicas are dealt evenly,
        to the least loaded nodes first."""
        if not self.strict:
            return self._deal(kinds)
        for order in placement_orders(kinds):
            parts: list[Placement] = []
            if not any(self._place(kind, count, ends, parts) for kind, count in order):
                return parts
            self.give_back(parts, ends)
        return None

    def take(self, part: Placement, ends: int = ENDLESS) -> None:
        """Take a place that is known to be free."""
        if not self.strict:
            return
        if part.node not in self._guarded:
            self.free.take(part.node, part.kind, part.count)
            return
        layout, vector = self._guarded[part.node]
        need = part.kind.vector(layout)
        self._guarded[part.node] = (layout, plus(vector, need, -part.count))
        self._most_guarded = None
        for guard in self._guards[part.node]:
            if _outlasts(ends, guard.at):
                guard.spare = plus(guard.spare, need, -part.count)

    def give_back(self, parts: list[Placement], ends: int) -> None:
        """Undo `take`, for work that was to be over at `ends`."""
        for part in parts:
            self.take(Placement(part.node, part.kind, -part.count), ends)

    def admit(self, entry: Entry) -> None:
        """Charge the project and the quotas of a gang that starts."""
        self.snapshot.projects.own(entry.gang.project_id).add(entry.gang.person, entry.takes, 1)
        for key, amount in entry.meters:
            self.snapshot.meters.own(key).used += amount
            for guard in self._meter_guards.get(key, ()):
                if _outlasts(self.ends(entry), guard.at):
                    guard.spare -= amount

    def base(self, node: str) -> tuple[Layout, Vector] | None:
        """Return what is free on a node beyond all that is reserved on it, which may be below zero; None if
        it takes no work."""
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
        """Return how many replicas of a sort would fit beyond what is reserved, `most` at most."""
        parts: list[Placement] = []
        left = self.free.fill(kind, most, parts)
        self.free.give_back(parts)
        for node in self._guarded:
            if not left:
                break
            base = self.base(node)
            if base and kind.suits(base[0]):
                left -= min(left, count_fitting(base[1], kind.vector(base[0])))
        return most - left

    def reserve(
        self,
        entry: Entry,
        at: Nanos,
        parts: list[Placement],
        extra: dict[str, Vector],
        spares: list[tuple[QuotaKey, int]],
    ) -> None:
        """Reserve places and quotas for a gang. `extra`: what comes free on nodes until then; `spares`: what
        is left of its meters then."""
        self.reservations.append(Reservation(entry.gang.uid, at))
        by_node: dict[str, list[Placement]] = {}
        for part in parts:
            by_node.setdefault(part.node, []).append(part)
        for node, here in by_node.items():
            unreserved = self.base(node)
            assert unreserved is not None
            layout, base = unreserved
            claim = (0,) * len(base)
            for part in here:
                claim = plus(claim, part.kind.vector(layout), part.count)
            spare = plus(plus(base, extra[node]) if node in extra else base, claim, -1)
            self._guards.setdefault(node, []).append(NodeGuard(at, spare))
            old = self._claims.get(node)
            self._claims[node] = plus(old, claim) if old else claim
            if node not in self._guarded:
                self._guarded[node] = (layout, self.free.vector(node))
                self.free.discard(node)
                self._most_guarded = None
        amounts = dict(entry.meters)
        for key, spare in spares:
            self._meter_guards.setdefault(key, []).append(MeterGuard(at, spare))
            self._meter_claims[key] = self._meter_claims.get(key, 0) + amounts[key]

    @property
    def guarded(self) -> Iterable[str]:
        """Nodes on which something is reserved."""
        return self._guarded.keys()

    def hide(self, nodes: Iterable[str]) -> list[Hidden]:
        """Hide nodes on which nothing is reserved; what is returned goes to `show`."""
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
        """Return where one more replica goes in relaxed mode, and count it there."""
        for at, (load, node) in enumerate(self._loads):
            if node != without:
                del self._loads[at]
                self._add_load(load + 1, node)
                return node
        return None

    def _place(self, kind: Kind, count: int, ends: int, parts: list[Placement]) -> int:
        while count and (node := self.free.best(kind)) is not None:
            need = kind.vector(self.free.layout(node))
            here = min(count, count_fitting(self.free.vector(node), need))
            self.take(Placement(node, kind, here))
            parts.append(Placement(node, kind, here))
            count -= here
        return self._place_guarded(kind, count, ends, parts) if count and self._guarded else count

    def _place_guarded(self, kind: Kind, count: int, ends: int, parts: list[Placement]) -> int:
        # Most nodes with reservations are full: a look at their few layouts refuses nearly all that ask.
        needs = {
            layout: kind.vector(layout)
            for layout, most in self._largest_guarded().items()
            if kind.suits(layout) and count_fitting(most, kind.vector(layout))
        }
        if not needs:
            return count
        for node, (layout, vector) in list(self._guarded.items()):
            if not count:
                break
            need = needs.get(layout)
            if need is None or node == self.avoid:
                continue
            here = min(count, count_fitting(vector, need))
            for guard in self._guards[node]:
                if here and _outlasts(ends, guard.at):
                    allowed = count_fitting(guard.spare, need)
                    self.held_back = self.held_back or allowed < here
                    here = min(here, allowed)
            if here:
                part = Placement(node, kind, here)
                self.take(part, ends)
                parts.append(part)
                count -= here
        return count

    def _largest_guarded(self) -> dict[Layout, Vector]:
        if self._most_guarded is None:
            most: dict[Layout, Vector] = {}
            for layout, vector in self._guarded.values():
                before = most.get(layout)
                most[layout] = tuple(map(max, before, vector)) if before else vector
            self._most_guarded = most
        return self._most_guarded

    def _deal(self, kinds: Kinds) -> list[Placement] | None:
        if not self._loads:
            return None
        size = sum(count for _, count in kinds)
        chosen = self._loads[:size]
        del self._loads[: len(chosen)]
        rounds, more = divmod(size, len(chosen))
        for at, (load, node) in enumerate(chosen):
            self._add_load(load + rounds + (at < more), node)
        return [Placement(chosen[at % len(chosen)][1], kinds[0][0], 1) for at in range(size)]

    def _add_load(self, load: int, node: str) -> None:
        insort(self._loads, (load, node))


def _outlasts(ends: int, at: Nanos) -> bool:
    """Whether work that is over at `ends` could be in the way of what is reserved from `at` on."""
    return at == 0 or ends > at


class Need:
    """What a gang lacks now, and whether it would have it if certain others were gone: they are imagined gone
    one by one, and it is counted what that frees.

    `kinds`: a part of a gang that has its quotas already. `quotas_only`: count neither nodes nor the number
    of replicas.
    """

    def __init__(
        self,
        transaction: PlanTransaction,
        entry: Entry,
        kinds: Kinds | None = None,
        *,
        quotas_only: bool = False,
    ) -> None:
        self.entry = entry
        self._transaction = transaction
        self.quotas_only = quotas_only
        self._nodes = transaction.strict and not quotas_only
        self._kinds = (kinds or entry.shape.kinds) if self._nodes else ()
        self._all_meters = transaction.snapshot.meters
        self._meters = [
            (key, amount)
            for key, amount in (() if kinds else entry.meters)
            if self._all_meters[key].limit is not None
            and not (quotas_only and self._all_meters[key].alone)
        ]
        self._freed: dict[QuotaKey, int] = dict.fromkeys((key for key, _ in self._meters), 0)
        self._extra: dict[str, Vector] = {}
        self._lacking = {
            kind: count - transaction.count(kind, count) for kind, count in self._kinds
        }

    @property
    def met(self) -> bool:
        """Whether it could start."""
        return self.enough and (len(self._kinds) <= 1 or self.places() is not None)

    @property
    def enough(self) -> bool:
        """Whether there is enough of everything, each sort of replica seen by itself."""
        return self.quotas_met and all(lack <= 0 for lack in self._lacking.values())

    @property
    def quotas_met(self) -> bool:
        return all(self._allows(key, amount) for key, amount in self._meters)

    @property
    def short_of_quota(self) -> bool:
        """Whether a quota of its project is used up, which does not concern other projects."""
        return any(
            not self._all_meters[key].alone and not self._allows(key, amount)
            for key, amount in self._meters
        )

    def add(self, gang: Entry, times: int = 1) -> bool:
        """Imagine a gang gone; with -1: there again. Returns False if that makes no difference."""
        matters = False
        for key, value in gang.meters:
            if key in self._freed:
                self._freed[key] += value * times
                matters = True
        if not self._nodes:
            return matters
        for node, there in gang.held.items():
            base = self._transaction.base(node)
            if base is None or not any(kind.suits(base[0]) for kind in self._lacking):
                continue
            layout, free = base
            before = self._extra.get(node) or (0,) * len(free)
            after = before
            for kind in there:
                after = plus(after, kind.vector(layout), times)
            self._extra[node] = after
            for kind in self._lacking:
                if kind.suits(layout):
                    vector = kind.vector(layout)
                    more = count_fitting(plus(free, after), vector) - count_fitting(
                        plus(free, before), vector
                    )
                    self._lacking[kind] -= more
            matters = True
        return matters

    def places(self) -> list[Placement] | None:
        """Return where it would go: what is free now first, then what is imagined free; None: nowhere."""
        transaction = self._transaction
        nodes: dict[str, tuple[Layout, Vector]] = {}
        for node in (*self._extra, *transaction.guarded):
            base = transaction.base(node)
            if base and node not in nodes:
                layout, free = base
                more = self._extra.get(node)
                nodes[node] = (layout, plus(free, more) if more else free)
        hidden = transaction.hide(nodes)
        try:
            for order in placement_orders(self._kinds):
                parts = self._arranged(order, dict(nodes))
                if parts is not None:
                    return parts
        finally:
            transaction.show(hidden)
        return None

    def reserve(self, at: Nanos) -> list[Placement]:
        """Reserve what it needs, from `at` on (ns, 0 = from no known time on). Returns the places."""
        parts = (self.places() if self._nodes else None) or []
        spares = [(key, max(0, self._left(key) - amount)) for key, amount in self._meters]
        self._transaction.reserve(self.entry, at, parts, self._extra, spares)
        return parts

    def _allows(self, key: QuotaKey, amount: int) -> bool:
        meter = self._all_meters[key]
        return meter.allows(amount, self._left(key), meter.used - self._freed[key])

    def _left(self, key: QuotaKey) -> int:
        return self._transaction.left(key) + self._freed[key]

    def _arranged(
        self, order: Kinds, nodes: dict[str, tuple[Layout, Vector]]
    ) -> list[Placement] | None:
        free = self._transaction.free
        taken: list[Placement] = []
        parts: list[Placement] = []
        left = 0
        for kind, count in order:
            left = free.fill(kind, count, taken)
            for node, (layout, vector) in nodes.items():
                if not left:
                    break
                if not kind.suits(layout):
                    continue
                need = kind.vector(layout)
                here = min(left, count_fitting(vector, need))
                if here:
                    nodes[node] = (layout, plus(vector, need, -here))
                    parts.append(Placement(node, kind, here))
                    left -= here
            if left:
                break
        free.give_back(taken)
        return None if left else [*taken, *parts]
