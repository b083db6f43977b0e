"""What the scheduler looks at, kept up to date change by change. No I/O; one owner.

A change costs about the logarithm of what is there, never a rebuild. Nothing here decides anything.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import TypeVar

from trainshed.core.capacity import UNLIMITED, NodeCondition, QuotaKey
from trainshed.core.catalog.quotas import public_limit
from trainshed.core.names import JobUid
from trainshed.scheduler.books import (
    CPUS,
    MEMORY,
    REPLICAS,
    Age,
    Entry,
    Kept,
    Meter,
    Project,
    Shapes,
    amount,
)
from trainshed.scheduler.model import Gang, NodeRoom, Policy, Quotas, Standing
from trainshed.scheduler.queue import Queue
from trainshed.scheduler.rooms import Kind, Layout, Rooms, Vector, capacity, layout, plus

_Sorted = TypeVar(
    "_Sorted", tuple[int, int], tuple[int, str], tuple[int, int, int], tuple[int, Age]
)


class Node:
    """A node and what is on it. `room` None: gangs name it, the engine does not (any more)."""

    __slots__ = ("holders", "layout", "name", "replicas", "room", "used")

    def __init__(self, name: str) -> None:
        self.name = name
        self.room: NodeRoom | None = None
        self.layout: Layout = ()
        self.used: Vector = (0, 0)
        self.replicas = 0
        self.holders: dict[JobUid, Entry] = {}

    @property
    def is_ready(self) -> bool:
        return self.room is not None and self.room.condition is NodeCondition.READY

    def change(self, kinds: Sequence[Kind], times: int) -> None:
        """Replicas come (1) or go (-1)."""
        for kind in kinds:
            self.used = plus(self.used, kind.vector(self.layout), times)
        self.replicas += len(kinds) * times


class Snapshot:
    """Nodes, quotas and gangs. Read by `planning` and `explaining`; changed by its owner only, through the methods.

    `free`: what is left on READY nodes. `ready` and `known`: all that READY nodes, and all nodes, have when
    empty; `version` counts their changes. `loads`: (replicas, node) of READY nodes. `releases`: (when its room
    comes back, uid) of running gangs. `spot`: those that may be preempted, cheapest first. `homeless`: gangs with a
    replica that lost its place. `totals`: what shares are parts of. `kept`: for whom the last plan kept room, noted
    for explanations only.
    """

    def __init__(self) -> None:
        self.policy = Policy()
        self.entries: dict[JobUid, Entry] = {}
        self.nodes: dict[str, Node] = {}
        self.projects: dict[str, Project] = {}
        self.meters: dict[QuotaKey, Meter] = {}
        self.replicas = Meter(QuotaKey("", "", REPLICAS), alone=True)
        self.queue = Queue()
        self.free, self.ready, self.known = Rooms(), Rooms(), Rooms()
        self.version = 0
        self.loads: list[tuple[int, str]] = []
        self.releases: list[tuple[int, JobUid]] = []
        self.leaving: dict[JobUid, Entry] = {}
        self.spot: list[tuple[int, int, int]] = []
        self.homeless: list[tuple[int, Age]] = []
        self.totals: dict[str, int] = {}
        self.kept: tuple[Kept, ...] = ()
        self._all: dict[str, int] = {}
        self._quotas: Quotas = {}
        self._shapes = Shapes()
        self.set_policy(self.policy)

    def set_policy(self, policy: Policy) -> None:
        self.policy = policy
        self.version += 1
        self.replicas.limit = None if policy.strict else amount(policy.max_replicas)
        self._weigh()
        for meter in self.meters.values():
            meter.limit = self._limit(meter.key)

    def set_quotas(self, quotas: Quotas) -> None:
        """All limits that an operator has set: those left out are not set any more."""
        self._quotas = dict(quotas)
        for meter in self.meters.values():
            meter.limit = self._limit(meter.key)

    def set_nodes(self, nodes: Sequence[NodeRoom]) -> None:
        """All nodes there are. Only what is different from before costs anything to speak of."""
        named = {room.name for room in nodes}
        for room in nodes:
            self.set_node(room)
        for name in [n for n, node in self.nodes.items() if n not in named and node.room]:
            self._set_node(name, None)

    def set_node(self, room: NodeRoom) -> None:
        """A node is new, or is not what it was."""
        node = self.nodes.get(room.name)
        if node is None or node.room != room:
            self._set_node(room.name, room)

    def put(self, standing: Standing) -> None:
        """A gang is new, or stands elsewhere than before."""
        before = self.entries.get(standing.gang.uid)
        if before is not None:
            if before.standing == standing:
                return
            self._detach(before)
        entry = self._entry(standing, before)
        self.entries[standing.gang.uid] = entry
        self._attach(entry)

    def remove(self, uid: JobUid) -> None:
        """A gang is over. Nothing happens if it is not known."""
        entry = self.entries.pop(uid, None)
        if entry is not None:
            self._detach(entry)

    def limit(self, key: QuotaKey) -> tuple[float, str]:
        """A quota's limit, `capacity.UNLIMITED` for none, and who set it: "set", "public" or "none"."""
        if key in self._quotas:
            return self._quotas[key], "set"
        if self.policy.public_quotas:
            public = public_limit(key.metric, key.region)
            if public != UNLIMITED:
                return public, "public"
        return UNLIMITED, "none"

    def quotas_set(self) -> Iterator[QuotaKey]:
        return iter(self._quotas)

    def kinds(self, gang: Gang) -> tuple[Kind, ...]:
        """The sort of each of its replicas."""
        return self._shapes.of(gang)[1]

    def entry(self, standing: Standing) -> Entry:
        """A gang as it would be noted, without noting it."""
        return self._entry(standing, None)

    def _entry(self, standing: Standing, before: Entry | None) -> Entry:
        gang = standing.gang
        if before is not None and before.gang == gang:
            shape, kinds = before.shape, before.kinds
        else:
            shape, kinds = self._shapes.of(gang)
        meters = [
            (self._meter(QuotaKey(gang.project_id, gang.region, metric)), amount(value))
            for metric, value in gang.quota
            if value
        ]
        meters.append((self.replicas, amount(len(gang.replicas))))
        project = self.projects.get(gang.project_id)
        if project is None:
            project = self.projects[gang.project_id] = Project(gang.project_id)
        entry = Entry(standing, shape, kinds, tuple(meters), project)
        if standing.places:
            sorts = dict(zip((replica for replica, _ in gang.replicas), kinds, strict=True))
            for replica, node in standing.places:
                entry.held.setdefault(node, []).append(sorts[replica])
        return entry

    def _meter(self, key: QuotaKey) -> Meter:
        meter = self.meters.get(key)
        if meter is None:
            meter = self.meters[key] = Meter(key)
            meter.limit = self._limit(key)
        return meter

    def _limit(self, key: QuotaKey) -> int | None:
        limit, _ = self.limit(key)
        return None if limit == UNLIMITED else amount(limit)

    def _attach(self, entry: Entry) -> None:
        uid = entry.gang.uid
        if not entry.has_room:
            if entry.waits:
                self.queue.add(entry)
                for meter, value in entry.meters:
                    meter.waiting += value
            return
        for name, kinds in entry.held.items():
            self._load(name, entry, kinds, 1)
        for meter, value in entry.meters:
            meter.used += value
            meter.holders[uid] = value
        entry.project.add(entry.takes, 1)
        insort(entry.project.running, entry.age)
        insort(self.releases, (entry.over_at, uid))
        if entry.standing.leaving:
            self.leaving[uid] = entry
            return
        if entry.gang.spot:
            insort(self.spot, cheapness(entry))
        if entry.standing.homeless:
            insort(self.homeless, (-entry.gang.priority, entry.age))

    def _detach(self, entry: Entry) -> None:
        uid = entry.gang.uid
        if not entry.has_room:
            if entry.waits:
                self.queue.drop(entry)
                for meter, value in entry.meters:
                    meter.waiting -= value
            return
        for name, kinds in entry.held.items():
            self._load(name, entry, kinds, -1)
        for meter, value in entry.meters:
            meter.used -= value
            del meter.holders[uid]
        entry.project.add(entry.takes, -1)
        _remove(entry.project.running, entry.age)
        _remove(self.releases, (entry.over_at, uid))
        if entry.standing.leaving:
            del self.leaving[uid]
            return
        if entry.gang.spot:
            _remove(self.spot, cheapness(entry))
        if entry.standing.homeless:
            _remove(self.homeless, (-entry.gang.priority, entry.age))

    def _load(self, name: str, entry: Entry, kinds: Sequence[Kind], times: int) -> None:
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name)
        if node.is_ready:
            _remove(self.loads, (node.replicas, name))
        node.change(kinds, times)
        if times > 0:
            node.holders[entry.gang.uid] = entry
        else:
            del node.holders[entry.gang.uid]
        if node.is_ready:
            insort(self.loads, (node.replicas, name))
            assert node.room is not None
            self.free.move(name, plus(capacity(node.room), node.used, -1))
        elif node.room is None and not node.holders:
            del self.nodes[name]

    def _set_node(self, name: str, room: NodeRoom | None) -> None:
        self.version += 1
        node = self.nodes.setdefault(name, Node(name))
        if node.room is not None:
            self._count(node.room, -1)
            if node.is_ready:
                _remove(self.loads, (node.replicas, name))
            for rooms in (self.free, self.ready, self.known):
                rooms.discard(name)
        node.room = room
        node.layout = () if room is None else layout(room)
        node.used, node.replicas = (0,) * (len(node.layout) + 2), 0
        for entry in node.holders.values():
            node.change(entry.held[name], 1)
        if room is None:
            if not node.holders:
                del self.nodes[name]
        else:
            self._count(room, 1)
            has = capacity(room)
            self.known.add(name, node.layout, has)
            if node.is_ready:
                insort(self.loads, (node.replicas, name))
                self.ready.add(name, node.layout, has)
                self.free.add(name, node.layout, plus(has, node.used, -1))
        self._weigh()

    def _count(self, room: NodeRoom, times: int) -> None:
        names = (*layout(room), CPUS, MEMORY)
        for what, value in zip(names, capacity(room), strict=True):
            self._all[what] = self._all.get(what, 0) + value * times

    def _weigh(self) -> None:
        self.totals = self._all if self.policy.strict else {REPLICAS: self.policy.max_replicas}


def cheapness(entry: Entry) -> tuple[int, int, int]:
    """Sorts spot gangs by what preempting one costs: lowest priority, then youngest."""
    return (entry.gang.priority, -entry.gang.created, -entry.gang.uid)


def _remove(ordered: list[_Sorted], item: _Sorted) -> None:
    del ordered[bisect_left(ordered, item)]
