"""What a gang lacks now, and whether it would have it if certain others gave their room back."""

from trainshed.scheduler.books import Entry, Meter
from trainshed.scheduler.rooms import Kinds, Layout, Part, Vector, orders, plus, slots
from trainshed.scheduler.scratch import Scratch


class Need:
    """Counts what is missing while gangs are imagined gone, one by one.

    `kinds`: a part of a gang that has its quotas already. `quotas_only`: neither nodes nor the number of replicas.
    """

    def __init__(
        self,
        scratch: Scratch,
        entry: Entry,
        kinds: Kinds | None = None,
        *,
        quotas_only: bool = False,
    ) -> None:
        self.entry = entry
        self._scratch = scratch
        self.quotas_only = quotas_only
        self._nodes = scratch.strict and not quotas_only
        self._kinds = (kinds or entry.shape.kinds) if self._nodes else ()
        self._meters = [
            (meter, amount)
            for meter, amount in (() if kinds else entry.meters)
            if meter.limit is not None and not (quotas_only and meter.alone)
        ]
        self._freed: dict[Meter, int] = dict.fromkeys((m for m, _ in self._meters), 0)
        self._extra: dict[str, Vector] = {}
        self._lacking = {kind: count - scratch.count(kind, count) for kind, count in self._kinds}

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
        return all(self._lets(meter, amount) for meter, amount in self._meters)

    @property
    def short_of_quota(self) -> bool:
        """Whether a quota of its project is used up, which is no matter of anyone else's."""
        return any(not m.alone and not self._lets(m, a) for m, a in self._meters)

    def add(self, gang: Entry, times: int = 1) -> bool:
        """Imagine a gang gone; with -1: there again. False: that makes no difference."""
        matters = False
        for meter, value in gang.meters:
            if meter in self._freed:
                self._freed[meter] += value * times
                matters = True
        if not self._nodes:
            return matters
        for node, there in gang.held.items():
            base = self._scratch.base(node)
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
                    more = slots(plus(free, after), vector) - slots(plus(free, before), vector)
                    self._lacking[kind] -= more
            matters = True
        return matters

    def places(self) -> list[Part] | None:
        """Where it would go: what is free now first, then the imagined room. None if it does not fit."""
        scratch = self._scratch
        rooms: dict[str, tuple[Layout, Vector]] = {}
        for node in (*self._extra, *scratch.guarded):
            found = scratch.base(node)
            if found and node not in rooms:
                layout, free = found
                more = self._extra.get(node)
                rooms[node] = (layout, plus(free, more) if more else free)
        hidden = scratch.hide(rooms)
        try:
            for order in orders(self._kinds):
                parts = self._arranged(order, dict(rooms))
                if parts is not None:
                    return parts
        finally:
            scratch.show(hidden)
        return None

    def keep(self, at: int) -> list[Part]:
        """Keep for it what it needs, from `at` on (ns, 0 = from no known time on). Returns the places."""
        parts = (self.places() if self._nodes else None) or []
        spares: list[tuple[Meter, int]] = []
        for meter, amount in self._meters:
            spares.append((meter, max(0, self._left(meter) - amount)))
        self._scratch.keep(self.entry, at, parts, self._extra, spares)
        return parts

    def _lets(self, meter: Meter, amount: int) -> bool:
        return meter.lets(amount, self._left(meter), meter.used - self._freed[meter])

    def _left(self, meter: Meter) -> int:
        return self._scratch.left(meter) + self._freed[meter]

    def _arranged(self, order: Kinds, rooms: dict[str, tuple[Layout, Vector]]) -> list[Part] | None:
        free = self._scratch.free
        taken: list[Part] = []
        parts: list[Part] = []
        left = 0
        for kind, count in order:
            left = free.fill(kind, count, taken)
            for node, (layout, room) in rooms.items():
                if not left:
                    break
                if not kind.suits(layout):
                    continue
                need = kind.vector(layout)
                here = min(left, slots(room, need))
                if here:
                    rooms[node] = (layout, plus(room, need, -here))
                    parts.append(Part(node, kind, here))
                    left -= here
            if left:
                break
        free.give_back(taken)
        return None if left else [*taken, *parts]
