"""What is free in the course of one plan: what it gives away, what it reserves, what a gang still lacks."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

from trainshed.core.capacity import QuotaKey
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.scheduler.entries import Entry
from trainshed.scheduler.resources import (
    ENDLESS,
    Kinds,
    NodeResources,
    Placement,
    Vector,
    count_fitting,
    count_placeable,
    find_placements,
    plus,
)
from trainshed.scheduler.snapshot import Snapshot


class PlanTransaction:
    """The changes of one plan to its snapshot, which is used up by them.

    What is reserved on a node for later is taken from what is free there now, unless it comes free until
    then: the rest of the node is for others.
    """

    def __init__(self, snapshot: Snapshot, now: Nanos) -> None:
        self.snapshot = snapshot
        self.now = now
        self.strict = snapshot.policy.strict
        #: What may be given away now.
        self.free = snapshot.free
        #: For whom resources are reserved.
        self.reservations: list[JobUid] = []
        #: When the next back-off is over (ns), 0 = there is none.
        self.next_release = snapshot.queue.release_due(now)
        #: What is reserved on a node and not taken from `free`, because it has yet to come free.
        self._promised: dict[str, Vector] = {}
        #: What is reserved of a meter, and the most that may be given away of it all the same.
        self._claims: dict[QuotaKey, int] = {}
        self._spares: dict[QuotaKey, int] = {}
        #: Replicas on each node that takes work, for relaxed mode.
        self._loads = {node: snapshot.nodes[node].replicas for node in snapshot.ready}

    # What is free of a quota

    def left(self, key: QuotaKey) -> int:
        """Return what is free of a meter beyond what is reserved of it."""
        meter = self.snapshot.meters[key]
        if meter.limit is None:
            return ENDLESS
        return meter.limit - meter.used - self._claims.get(key, 0)

    def allows(self, entry: Entry) -> bool:
        """Whether quotas and the number of replicas let it start now."""
        return all(
            self.snapshot.meters[key].has(amount) and amount <= self._spares.get(key, ENDLESS)
            for key, amount in entry.meters
        )

    # What is free on nodes

    def fit(self, kinds: Kinds, without: str = "") -> list[Placement] | None:
        """Take places for a whole gang; None if it does not fit. In relaxed mode replicas are dealt evenly,
        to the least loaded nodes first. `without`: a node that is not used."""
        if not self.strict:
            return self._deal(kinds, without)
        hidden = self.free.discard(without)
        parts = find_placements(self.free, kinds)
        if hidden is not None:
            self.free.add(without, *hidden)
        self.take(parts or ())
        return parts

    def take(self, parts: Sequence[Placement]) -> None:
        """Take places that are known to be free."""
        for part in parts if self.strict else ():
            self.free.take(part.node, part.kind, part.count)

    def admit(self, entry: Entry) -> None:
        """Charge the project and the quotas of a gang that starts."""
        self.snapshot.use(entry, 1)
        for key, amount in entry.meters:
            self.snapshot.meters[key].used += amount
            if key in self._spares:
                self._spares[key] -= amount

    def base(self, node: str) -> Vector | None:
        """Return what is free on a node beyond all that is reserved on it, which may be below zero; None if
        it takes no work."""
        if node not in self.free:
            return None
        free, promised = self.free.vector(node), self._promised.get(node)
        return plus(free, promised, -1) if promised else free

    @contextmanager
    def imagined(self, extra: Mapping[str, Vector]) -> Generator[NodeResources]:
        """Have `free` hold what is free beyond all that is reserved, and in addition what would come free on
        nodes."""
        before = {node: self.free.vector(node) for node in (*self._promised, *extra)}
        for node in before:
            base = self.base(node)
            assert base is not None
            self.free.move(node, plus(base, extra[node]) if node in extra else base)
        try:
            yield self.free
        finally:
            for node, vector in before.items():
                self.free.move(node, vector)

    def reserve(
        self,
        entry: Entry,
        parts: list[Placement],
        extra: Mapping[str, Vector],
        spares: list[tuple[QuotaKey, int]],
    ) -> None:
        """Reserve places and quotas for a gang. `extra`: what comes free on nodes until it starts; `spares`:
        what is left of its meters then."""
        self.reservations.append(entry.gang.uid)
        claims: dict[str, Vector] = {}
        for part in parts:
            need = part.kind.vector(self.free.layout(part.node))
            claims[part.node] = plus(claims.get(part.node) or (0,) * len(need), need, part.count)
        for node, claim in claims.items():
            base = self.base(node)
            assert base is not None
            spare = plus(plus(base, extra[node]) if node in extra else base, claim, -1)
            free = tuple(map(min, self.free.vector(node), spare))
            self._promised[node] = plus(plus(free, base, -1), claim)
            self.free.move(node, free)
        amounts = dict(entry.meters)
        for key, spare in spares:
            self._spares[key] = min(spare, self._spares.get(key, ENDLESS))
            self._claims[key] = self._claims.get(key, 0) + amounts[key]

    def _deal(self, kinds: Kinds, without: str) -> list[Placement] | None:
        size = sum(count for _, count in kinds)
        usable = sorted((load, node) for node, load in self._loads.items() if node != without)
        if not usable:
            return None
        nodes = [node for _, node in islice(cycle(usable[:size]), size)]
        for node in nodes:
            self._loads[node] += 1
        return [Placement(node, kinds[0][0], 1) for node in nodes]


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
        with transaction.imagined({}) as free:
            self._lacking = {
                kind: count - count_placeable(free, kind, count) for kind, count in self._kinds
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
            if base is None:
                continue
            layout = self._transaction.free.layout(node)
            suited = [kind for kind in self._lacking if kind.suits(layout)]
            if not suited:
                continue
            after = before = self._extra.get(node) or (0,) * len(base)
            for kind in there:
                after = plus(after, kind.vector(layout), times)
            self._extra[node] = after
            for kind in suited:
                vector = kind.vector(layout)
                self._lacking[kind] += count_fitting(plus(base, before), vector)
                self._lacking[kind] -= count_fitting(plus(base, after), vector)
            matters = True
        return matters

    def places(self) -> list[Placement] | None:
        """Return where it would go; None: nowhere."""
        with self._transaction.imagined(self._extra) as free:
            return find_placements(free, self._kinds)

    def reserve(self) -> list[Placement]:
        """Reserve what it needs. Returns the places."""
        parts = (self.places() if self._nodes else None) or []
        spares = [(key, max(0, self._left(key) - amount)) for key, amount in self._meters]
        self._transaction.reserve(self.entry, parts, self._extra, spares)
        return parts

    def _allows(self, key: QuotaKey, amount: int) -> bool:
        meter = self._all_meters[key]
        return meter.allows(amount, self._left(key), meter.used - self._freed[key])

    def _left(self, key: QuotaKey) -> int:
        return self._transaction.left(key) + self._freed[key]
