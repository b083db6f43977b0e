"""The state of the scheduler: nodes, quotas, gangs, and the queue of waiting gangs. No I/O, and one owner.

Each change updates the snapshot in about logarithmic time, without a rebuild. Planners use a copy. This
module makes no decisions.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Protocol, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.capacity import QuotaKey
from trainshed.core.catalog.quotas import BUDGETS, GLOBAL, HARD_BUDGETS, JOBS, SHARE
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.scheduler.entries import (
    CPUS,
    MEMORY,
    REPLICAS,
    Age,
    Charged,
    Entry,
    Meter,
    Node,
    Past,
    Shape,
    Shapes,
    entry_of,
)
from trainshed.scheduler.model import GangRequest, GangState, NodeCapacity, Policy, Quotas, limit_of
from trainshed.scheduler.resources import (
    UNKNOWN_LAYOUT,
    Kind,
    NodeResources,
    capacity_of,
    layout_of,
    others_of,
    thousandths,
)


class _Copied(Protocol):
    def copy(self) -> Self: ...


K = TypeVar("K")
V = TypeVar("V", bound=_Copied)


def _copy_values(table: dict[K, V]) -> dict[K, V]:
    return {key: value.copy() for key, value in table.items()}


_Sorted = TypeVar("_Sorted", Entry, tuple[int, int], tuple[int, str], tuple[int, int, int], tuple[int, Age])


LevelKey = tuple[int, bool]
"""(minus priority, spot). At equal priority, spot gangs come last, because on-demand gangs would preempt
them."""


def level_of(entry: Entry) -> LevelKey:
    return (-entry.gang.priority, entry.gang.spot)


class Group(Struct):
    """The waiting gangs of one project on one level, in buckets by shape. A plan reads only the first gang of
    each bucket."""

    #: All waiting entries, oldest first, including those in a back-off.
    waiting: list[Entry] = []
    #: Entries that may start now, oldest first, by shape.
    buckets: dict[Shape, list[Entry]] = {}
    #: The oldest entries of the buckets by user, oldest first.
    heads: dict[str, list[Entry]] = {}
    #: The total amounts of all waiting entries.
    sums: dict[str, int] = {}

    def copy(self) -> "Group":
        return Group(
            self.waiting.copy(), _copy_values(self.buckets), _copy_values(self.heads), self.sums.copy()
        )

    def add(self, entry: Entry) -> None:
        insort(self.waiting, entry)
        self._count(entry, 1)

    def drop(self, entry: Entry) -> None:
        _remove(self.waiting, entry)
        self._count(entry, -1)

    def release(self, entry: Entry) -> None:
        """Permit a gang to start from now on, after its back-off."""
        heads = self.heads.setdefault(entry.gang.person, [])
        if entry.shape not in self.buckets:
            self.buckets[entry.shape] = [entry]
            insort(heads, entry)
            return
        bucket = self.buckets[entry.shape]
        if entry < bucket[0]:
            _remove(heads, bucket[0])
            insort(heads, entry)
        insort(bucket, entry)

    def withdraw(self, entry: Entry) -> None:
        """Undo `release`: do not permit the gang to start."""
        bucket = self.buckets[entry.shape]
        at = bisect_left(bucket, entry)
        del bucket[at]
        if at == 0:
            heads = self.heads[entry.gang.person]
            _remove(heads, entry)
            if bucket:
                insort(heads, bucket[0])
            else:
                del self.buckets[entry.shape]
                if not heads:
                    del self.heads[entry.gang.person]

    def _count(self, entry: Entry, times: int) -> None:
        for what, taken in entry.amounts:
            self.sums[what] = self.sums.get(what, 0) + taken * times


class Queue:
    """The waiting gangs in their order: priority, on-demand before spot, project, age."""

    def __init__(self) -> None:
        #: The groups of each level by project id.
        self.levels: dict[LevelKey, dict[str, Group]] = {}
        #: The keys of `levels`, in the order of the queue.
        self.order: list[LevelKey] = []
        self._size = 0
        #: (end of the back-off, gang) of gangs in a back-off, earliest end first.
        self._back_offs: list[tuple[int, Entry]] = []

    def copy(self) -> "Queue":
        made = Queue()
        made.levels = {level: _copy_values(groups) for level, groups in self.levels.items()}
        made.order, made._size, made._back_offs = (self.order.copy(), self._size, self._back_offs.copy())
        return made

    def __len__(self) -> int:
        return self._size

    def add(self, entry: Entry) -> None:
        key = level_of(entry)
        groups = self.levels.get(key)
        if groups is None:
            groups = self.levels[key] = {}
            insort(self.order, key)
        group = groups.setdefault(entry.gang.project_id, Group())
        group.add(entry)
        self._size += 1
        if entry.state.not_before:
            insort(self._back_offs, (entry.state.not_before, entry))
        else:
            group.release(entry)

    def drop(self, entry: Entry) -> None:
        """Remove a gang from the queue."""
        key = level_of(entry)
        groups = self.levels[key]
        group = groups[entry.gang.project_id]
        at = bisect_left(self._back_offs, (entry.state.not_before, entry))
        if at < len(self._back_offs) and self._back_offs[at][1] is entry:
            del self._back_offs[at]
        else:
            group.withdraw(entry)
        group.drop(entry)
        self._size -= 1
        if not group.waiting:
            del groups[entry.gang.project_id]
        if not groups:
            del self.levels[key]
            del self.order[bisect_left(self.order, key)]

    def group(self, entry: Entry) -> Group:
        return self.levels[level_of(entry)][entry.gang.project_id]

    def release_due(self, now: Nanos) -> Nanos | None:
        """Release the gangs whose back-off is over at `now`. Return the end of the next back-off (ns), or
        None."""
        at = bisect_right(self._back_offs, now, key=itemgetter(0))
        for _, entry in self._back_offs[:at]:
            self.group(entry).release(entry)
        del self._back_offs[:at]
        return self._back_offs[0][0] if self._back_offs else None


CONCURRENT_REPLICAS = QuotaKey(project_id="", region="", metric=REPLICAS)
"""The key of the meter for the number of concurrent replicas."""
_TABLES = ("nodes", "meters")
_COPIED = (
    *("entries", "used", "past", "queue", "free", "ready", "total_resources"),
    *("releases", "leaving", "spot", "unplaced", "_all"),
)
"""The fields of a snapshot that a plan of the scheduler changes in place, so a copy includes them. The values
of dictionaries are copied as well."""


class Snapshot:
    """Nodes, quotas, gangs and the queue. Only the component that owns it changes it, through its methods.
    The scheduler's plan consumes a copy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.entries: dict[JobUid, Entry] = {}
        self.nodes: dict[str, Node] = {}
        #: The present usage of gangs for the fair share, by project and user (None for all users together).
        self.used: dict[tuple[str, str | None], dict[str, int]] = {}
        #: The meters of the used quotas, and `CONCURRENT_REPLICAS`.
        self.meters = {CONCURRENT_REPLICAS: Meter(CONCURRENT_REPLICAS, is_exclusive=True)}
        self.queue = Queue()
        #: The free amounts of READY nodes.
        self.free = NodeResources()
        #: The total amounts of READY nodes.
        self.ready = NodeResources()
        #: The total amounts of all nodes.
        self.total_resources = NodeResources()
        #: Number of changes of `ready` and `total_resources`.
        self.version = 0
        #: (end, uid) of the running gangs, with the earliest end first. A gang's resources become free at its
        #: end.
        self.releases: list[tuple[int, JobUid]] = []
        self.leaving: dict[JobUid, Entry] = {}
        #: The `cheapness` of the gangs that may be preempted, cheapest first.
        self.spot: list[tuple[int, int, int]] = []
        #: (minus priority, age) of gangs with a replica that lost its node.
        self.unplaced: list[tuple[int, Age]] = []
        #: The total amounts, to which the shares of projects refer.
        self.totals: dict[str, int] = {}
        #: The gangs for which the current plan reserves resources.
        self.reservations: tuple[JobUid, ...] = ()
        #: Projects and users whose budget is used up (see `set_exhausted`).
        self.exhausted: Mapping[QuotaKey, str] = {}
        self.stopped = frozenset[QuotaKey]()
        self.past = Past(policy.half_life)
        self._all: dict[str, int] = {}
        #: The limits that operators have set.
        self.quotas: Quotas = {}
        #: Whether all projects and users have the same weight in the fair share.
        self._are_equal = True
        #: The projects in which users have quotas.
        self._personal = frozenset[str]()
        self._shapes = Shapes()
        self._weigh()
        self._set_limits()

    def copy(self) -> "Snapshot":
        """Return a copy, which another thread may change and read. Copying takes a few nanoseconds per gang,
        and about a microsecond per node."""
        made = Snapshot.__new__(Snapshot)
        for name, value in self.__dict__.items():
            setattr(made, name, value)
        for name in _COPIED:
            setattr(made, name, getattr(self, name).copy())
        for name in _TABLES:
            setattr(made, name, _copy_values(getattr(self, name)))
        # Not shared, because another thread may change the original's shapes.
        made._shapes = Shapes()
        made._weigh()
        return made

    @property
    def size(self) -> int:
        return len(self.entries) + len(self.nodes)

    def set_quotas(self, quotas: Quotas) -> None:
        """Replace all limits that operators have set."""
        self.quotas = dict(quotas)
        self._are_equal = not any(key.metric == SHARE for key in quotas)
        personal = frozenset(key.project_id for key in quotas if key.person)
        if personal != self._personal:
            self._personal = personal
            entries = list(self.entries.values())
            for entry in entries:
                self._count(entry, -1)
                entry.shape.charged.clear()
            for entry in entries:
                charged = self._entry(entry.state, None)
                self.entries[entry.gang.uid] = charged
                self._count(charged, 1)
        self._set_limits()

    def set_exhausted(self, budgets: Mapping[QuotaKey, str], stopped: frozenset[QuotaKey]) -> None:
        """Set the projects and users whose budget is used up. `budgets`: a sentence for each, by the key of
        their `JOBS` quota. None of their jobs starts. `stopped`: the keys of projects and users whose running
        jobs must also release their nodes."""
        self.stopped = stopped
        if budgets != self.exhausted:
            self.exhausted = budgets
            self._set_limits()

    def _set_limits(self) -> None:
        for key, meter in self.meters.items():
            meter.limit = self._limit(key)

    def set_nodes(self, nodes: Sequence[NodeCapacity]) -> None:
        """Replace all nodes. Unchanged nodes take almost no time."""
        names = {capacity.name for capacity in nodes}
        for capacity in nodes:
            self.set_node(capacity)
        for name in [n for n, node in self.nodes.items() if n not in names and node.capacity]:
            self._set_node(name, None)

    def set_node(self, capacity: NodeCapacity) -> None:
        """Add a node, or change one."""
        node = self.nodes.get(capacity.name)
        before = node.capacity if node else None
        if node is None or before is None or replace(before, others=capacity.others) != capacity:
            self._set_node(capacity.name, capacity)
        elif before != capacity:
            node.capacity, node.others = capacity, others_of(capacity, node.layout)
            if node.is_ready:
                self.free.move(capacity.name, node.free)

    def put(self, state: GangState) -> None:
        """Add a gang, or change its placement."""
        before = self.entries.get(state.gang.uid)
        if before is not None:
            if before.state == state:
                return
            self._count(before, -1)
        entry = self._entry(state, before)
        self.entries[state.gang.uid] = entry
        self._count(entry, 1)

    def remove(self, uid: JobUid) -> None:
        """Remove a gang that has ended, if it is known."""
        entry = self.entries.pop(uid, None)
        if entry is not None:
            self._count(entry, -1)

    def use(self, entry: Entry, times: int) -> None:
        """Count the usage of a gang for the fair share (`times` 1), or stop counting it (-1)."""
        for person in (None, entry.gang.person):
            key = entry.gang.project_id, person
            # Create a new dictionary, because copies share the old one.
            used = self.used[key] = dict(self.used.get(key, {}))
            for what, amount in entry.amounts:
                used[what] = used.get(what, 0) + amount * times
            if not any(used.values()):
                del self.used[key]

    def is_behind(self, uid: JobUid) -> bool:
        """Return whether an older gang of the same project, level and shape is waiting. A plan considers this
        gang only if the older gang starts."""
        entry = self.entries[uid]
        if not entry.waits or entry.state.not_before:
            return False
        return self.queue.group(entry).buckets[entry.shape][0] is not entry

    def limit(self, key: QuotaKey) -> float | None:
        return limit_of(self.quotas, key)

    def budget_message(self, key: QuotaKey) -> str | None:
        """Return a sentence if the budget of a project or user is used up, otherwise None. `key`: the key of
        their `JOBS` quota."""
        # A budget of 0 for each user also applies to users that are not known yet.
        if key not in self.exhausted and key.metric == JOBS and key.person:
            budgets = (replace(key, metric=metric) for metric in (*BUDGETS, *HARD_BUDGETS))
            if any(self.limit(budget) == 0 for budget in budgets):
                return f"{key.person} has a budget of 0 this month"
        return self.exhausted.get(key)

    def weight(self, project: str, person: str | None) -> float:
        """Return the fair-share weight of a user in a project. `person`: None for the project itself."""
        key = QuotaKey(project_id=project, region=GLOBAL, metric=SHARE, person=person or "")
        due = None if self._are_equal or person == "" else self.limit(key)
        return 1.0 if due is None else due

    def _entry(self, state: GangState, before: Entry | None) -> Entry:
        gang = state.gang
        if before is not None and before.gang == gang:
            shape, kinds = before.shape, before.kinds
        else:
            shape, kinds = self._shapes.of(gang)
        charged = shape.charged.get(gang.project_id) or self._charge(shape, gang)
        return entry_of(state, shape, kinds, charged)

    def _charge(self, shape: Shape, gang: GangRequest) -> Charged:
        """Return the meters that are charged for a gang of this shape and project."""
        taken = [(metric, gang.region, value) for metric, value in shape.amounts]
        taken.append((JOBS, GLOBAL, thousandths(1)))
        # Usage is counted by user only in projects with limits for users. There may be ten thousand users.
        is_personal = gang.project_id in self._personal
        persons = dict.fromkeys(("", gang.person if is_personal else ""))
        quotas = [
            (QuotaKey(project_id=gang.project_id, region=region, metric=metric, person=person), value)
            for metric, region, value in taken
            for person in persons
        ]
        for key, _ in quotas:
            if key not in self.meters:
                meter = self.meters[key] = Meter(key)
                meter.limit = self._limit(key)
        charged = shape.charged[gang.project_id] = (*quotas, (CONCURRENT_REPLICAS, shape.replicas))
        return charged

    def _limit(self, key: QuotaKey) -> int | None:
        if key == CONCURRENT_REPLICAS:
            return None if self.policy.strict else thousandths(self.policy.max_replicas)
        if self.budget_message(key) is not None:
            return 0
        limit = self.limit(key)
        return None if limit is None else thousandths(limit)

    def _count(self, entry: Entry, times: int) -> None:
        """Count a gang with its current placement (`times` 1), or stop counting it (-1)."""
        uid, change = entry.gang.uid, insort if times > 0 else _remove
        if not entry.is_placed:
            if not entry.state.leaving:
                (self.queue.add if times > 0 else self.queue.drop)(entry)
                for key, value in entry.meters:
                    self.meters[key].waiting += value * times
            return
        for name, kinds in entry.kinds_by_node.items():
            self._load(name, entry, kinds, times)
        for key, value in entry.meters:
            self.meters[key].hold(uid, value, times)
        self.use(entry, times)
        change(self.releases, (entry.free_at, uid))
        if entry.state.leaving:
            if times > 0:
                self.leaving[uid] = entry
            else:
                del self.leaving[uid]
            return
        if entry.gang.spot:
            change(self.spot, cheapness(entry))
        if entry.state.unplaced:
            change(self.unplaced, (-entry.gang.priority, entry.age))

    def _load(self, name: str, entry: Entry, kinds: Sequence[Kind], times: int) -> None:
        node = self.nodes.setdefault(name, Node(name))
        node.change(kinds, times)
        if times > 0:
            node.holders[entry.gang.uid] = entry
        else:
            del node.holders[entry.gang.uid]
        if node.is_ready:
            self.free.move(name, node.free)
        elif node.capacity is None and not node.holders:
            del self.nodes[name]

    def _set_node(self, name: str, capacity: NodeCapacity | None) -> None:
        self.version += 1
        node = self.nodes.setdefault(name, Node(name))
        if node.capacity is not None:
            self._sum(node, -1)
            for rooms in (self.free, self.ready, self.total_resources):
                rooms.discard(name)
        node.capacity = capacity
        node.layout = UNKNOWN_LAYOUT if capacity is None else layout_of(capacity)
        node.usage, node.replicas = (0,) * node.layout.size, 0
        node.has = node.others = node.usage
        if capacity is not None:
            node.has = capacity_of(capacity, node.layout)
            node.others = others_of(capacity, node.layout)
        for entry in node.holders.values():
            node.change(entry.kinds_by_node[name], 1)
        if capacity is None:
            if not node.holders:
                del self.nodes[name]
        else:
            self._sum(node, 1)
            self.total_resources.add(name, node.layout, node.has)
            if node.is_ready:
                self.ready.add(name, node.layout, node.has)
                self.free.add(name, node.layout, node.free)
        self._weigh()

    def _sum(self, node: Node, times: int) -> None:
        names = (*node.layout.types, CPUS, MEMORY)
        for what, value in zip(names, node.has, strict=True):
            self._all[what] = self._all.get(what, 0) + value * times

    def _weigh(self) -> None:
        self.totals = self._all if self.policy.strict else {REPLICAS: self.policy.max_replicas}


def cheapness(entry: Entry) -> tuple[int, int, int]:
    """Return a sort key for the cost of preempting a spot gang: lowest priority first, then youngest."""
    return (entry.gang.priority, -entry.gang.created, -entry.gang.uid)


def _remove(ordered: list[_Sorted], item: _Sorted) -> None:
    del ordered[bisect_left(ordered, item)]
