"""The snapshot's entries for each gang, quota and project. `snapshot` writes them, and `planning` reads
them."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.capacity import NodeCondition, QuotaKey
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.units import Nanos
from trainshed.core.usage import HOUR, MachineTime
from trainshed.scheduler.model import Demand, GangRequest, GangState, NodeCapacity
from trainshed.scheduler.resources import (
    ENDLESS,
    UNKNOWN_LAYOUT,
    Kind,
    Kinds,
    Layout,
    Placement,
    Vector,
    plus,
    thousandths,
)

REPLICAS = "replicas"
CPUS = "cpus"
MEMORY = "memory"
Age = tuple[int, JobUid]
"""(created, uid) of a gang. Older gangs sort first."""
Amounts = tuple[tuple[str, int], ...]
"""A gang's amounts of shared resources: replicas, CPUs, memory, and accelerators by type."""


class Meter(Struct):
    """Counts the used and waiting amounts of a limit: a quota, or the number of concurrent replicas. Amounts
    are in thousandths."""

    key: QuotaKey
    #: Whether a gang may exceed the limit if no other gang uses the resource, as with the number of replicas.
    is_exclusive: bool = False
    #: The limit, or None without a limit.
    limit: int | None = None
    usage: int = 0
    #: The total amount that all waiting gangs request.
    waiting: int = 0
    #: Amounts of the running gangs, by uid.
    holders: dict[JobUid, int] = {}

    def copy(self) -> "Meter":
        return replace(self, holders=self.holders.copy())

    def hold(self, uid: JobUid, amount: int, times: int) -> None:
        """Count the amount that a gang uses (`times` 1), or stop counting it (-1)."""
        self.usage += amount * times
        if times > 0:
            self.holders[uid] = amount
        else:
            del self.holders[uid]

    def has(self, amount: int) -> bool:
        """Return whether the limit currently permits the use of another `amount`."""
        return self.limit is None or self.allows(amount, self.limit - self.usage, self.usage)

    def allows(self, amount: int, free: int, used: int) -> bool:
        """Return whether the limit permits the use of another `amount`, if `free` remains below the limit and
        `used` is in use."""
        return amount <= free or (self.is_exclusive and used <= 0)


class Past:
    """The past usage of projects and users, for the fair share.

    Past usage counts like present usage, multiplied by 1 - 2 ** -(duration / half_life). Its weight halves
    after each `half_life` (ns).
    """

    def __init__(self, half_life: int) -> None:
        self._half_life = half_life
        #: Past usage by project and user (None for all users together), scaled to the time `_since`. New
        #: usage is scaled up, so that old values need no update.
        self._used: dict[tuple[str, str | None], dict[str, float]] = {}
        #: The reference time of the stored values (ns), or 0 without stored usage.
        self._since = 0
        #: The present weight of `_used`.
        self._fading = 1.0

    def copy(self) -> "Past":
        made = Past(self._half_life)
        made._used, made._since, made._fading = self._used.copy(), self._since, self._fading
        return made

    def add(self, used: MachineTime, began: Nanos, ended: Nanos) -> None:
        """Add the usage of a project and its user between the times `began` and `ended`."""
        if ended <= began:
            return
        self._since = self._since or ended
        # Scale the stored values down before they exceed the range of a float, as after a thousand doublings.
        if ended - self._since > 500 * self._half_life:
            self.set_time(ended)
            self._used = {
                key: {what: value * self._fading for what, value in past.items()}
                for key, past in self._used.items()
            }
            self._since, self._fading = ended, 1.0
        grown = 2 ** ((ended - self._since) / self._half_life)
        weight = (1 - 2 ** -((ended - began) / self._half_life)) * grown * HOUR / (ended - began)
        for person in (None, used.person):
            key = used.project_id, person
            # Create a new dictionary, because copies share the old one.
            past = self._used[key] = dict(self._used.get(key, {}))
            for what, hours in (
                (REPLICAS, used.machine_hours),
                (CPUS, used.cpu_hours * 1000),
                (MEMORY, used.gigabyte_hours * 1e9),
                (used.accelerator, used.gpu_hours),
            ):
                if hours:
                    past[what] = past.get(what, 0.0) + hours * weight

    def set_time(self, now: Nanos) -> None:
        """Set the present time, at which past usage is weighted."""
        if self._since:
            self._fading = 2 ** -((now - self._since) / self._half_life)

    def with_present(
        self, project_id: str, used: Mapping[str, float], person: str | None = None
    ) -> Mapping[str, float]:
        """Return the usage that counts for the fair share of a project or user: the present usage `used` plus
        the weighted past usage."""
        past = self._used.get((project_id, person))
        if not past:
            return used
        sums = dict(used)
        for what, value in past.items():
            sums[what] = sums.get(what, 0) + value * self._fading
        return sums


def share(used: Mapping[str, float], totals: Mapping[str, int]) -> float:
    """Return the dominant share: the largest used fraction of any single resource."""
    most = 0.0
    for what, amount in used.items():
        total = totals.get(what)
        if total:
            most = max(most, amount / total)
    return most


class ResourceRequest:
    """A gang's requirements on nodes."""

    __slots__ = ("__weakref__", "amounts", "feasibility", "in_order", "kinds")

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        #: The kind of each replica, if a gang's replicas are in the order of `kinds`. Such gangs share this
        #: tuple.
        self.in_order = _in_order(kinds)
        self.amounts = _amounts(kinds)
        #: A version of the nodes, and the two values that `fitting.assess` returned for it: resources that no
        #: node can provide (None = none), and whether empty READY nodes could run the gang.
        self.feasibility: tuple[int, str | None, bool] = (-1, None, True)


class Shape:
    """The common properties of gangs that need the same resources. If one gang of a project does not fit, no
    other gang of the project with this shape fits."""

    __slots__ = ("__weakref__", "amounts", "charged", "kinds", "replicas", "request")

    def __init__(self, request: ResourceRequest, quota: Sequence[tuple[str, float]]) -> None:
        self.request = request
        self.kinds = request.kinds
        #: The gang's amount of each quota, by metric.
        self.amounts = tuple([(metric, thousandths(value)) for metric, value in quota if value])
        #: The gang's number of replicas in thousandths.
        self.replicas = thousandths(sum(count for _, count in request.kinds))
        #: The amounts that are charged for such a gang, by project and meter. A shape belongs to one region.
        self.charged: dict[str, Charged] = {}


Charged = tuple[tuple[QuotaKey, int], ...]
"""(key of the meter, amount) for each limit that a gang counts against. The meter of the number of replicas
is last."""


_NOTHING: Mapping[str, Sequence[Kind]] = {}


class Entry(Struct, order=True, gc=False):
    """One gang in the snapshot. Older entries sort first.

    A snapshot may contain a hundred thousand entries, so each is small. The garbage collector need not check
    entries, because they are not part of reference cycles.
    """

    #: No two entries have the same `created` and `uid`, so comparisons never reach the later fields.
    created: Nanos
    uid: JobUid
    state: GangState
    gang: GangRequest
    shape: Shape
    #: The kind of each replica of the gang, in the order of the replicas.
    kinds: tuple[Kind, ...]
    meters: Charged
    #: Earliest time at which the gang could have been placed (ns). Its waiting time starts here.
    eligible_at: Nanos
    #: The kinds of the gang's replicas on each node.
    kinds_by_node: Mapping[str, Sequence[Kind]]

    @property
    def age(self) -> Age:
        return self.created, self.uid

    @property
    def amounts(self) -> Amounts:
        return self.shape.request.amounts

    @property
    def is_placed(self) -> bool:
        """Return whether the gang was admitted. Some of its replicas may have lost their nodes since then."""
        return bool(self.state.places or self.state.unplaced)

    @property
    def waits(self) -> bool:
        return not self.is_placed and not self.state.leaving

    @property
    def free_at(self) -> int:
        """Return the latest time (ns) at which the gang's resources become free, or ENDLESS if unknown."""
        return 0 if self.state.leaving else self.state.until or ENDLESS

    def kinds_by_replica(self) -> dict[ReplicaId, Kind]:
        return dict(zip((replica for replica, _ in self.gang.replicas), self.kinds, strict=True))


def entry_of(state: GangState, shape: Shape, kinds: tuple[Kind, ...], meters: Charged) -> Entry:
    """Return the entry of a gang in this state."""
    gang, since, until = state.gang, state.waiting_since, state.not_before
    eligible_at = since if since > until else until
    held = _kinds_by_node(state, kinds) if state.places else _NOTHING
    return Entry(gang.created, gang.uid, state, gang, shape, kinds, meters, eligible_at, held)


def _kinds_by_node(state: GangState, kinds: tuple[Kind, ...]) -> Mapping[str, Sequence[Kind]]:
    sorts = dict(zip((replica for replica, _ in state.gang.replicas), kinds, strict=True))
    held: dict[str, list[Kind]] = {}
    for replica, node in state.places:
        held.setdefault(node, []).append(sorts[replica])
    return held


def assign_replicas(entry: Entry, parts: Sequence[Placement]) -> tuple[tuple[ReplicaId, str], ...]:
    """Assign replicas to the nodes of a placement. In relaxed mode, the nodes are in the order of the
    replicas."""
    replicas = [replica for replica, _ in entry.gang.replicas]
    nodes: dict[Kind, list[str]] = {}
    for part in parts:
        nodes.setdefault(part.kind, []).extend([part.node] * part.count)
    if len(nodes) == 1:
        return tuple(zip(replicas, *nodes.values(), strict=True))
    places = {kind: iter(names) for kind, names in nodes.items()}
    return tuple((replica, next(places[kind])) for replica, kind in zip(replicas, entry.kinds, strict=True))


class Shapes:
    """Returns the same `Shape` for equal gangs and the same `Kind` for equal replicas, as long as that object
    is in use."""

    def __init__(self) -> None:
        self._kinds: WeakValueDictionary[Demand, Kind] = WeakValueDictionary()
        self._requests: WeakValueDictionary[Kinds, ResourceRequest] = WeakValueDictionary()
        self._shapes: WeakValueDictionary[object, Shape] = WeakValueDictionary()

    def of(self, gang: GangRequest) -> tuple[Shape, tuple[Kind, ...]]:
        """Return the gang's shape, and the kind of each of its replicas."""
        # Group adjacent equal demands. This is fast, because the replicas of a pool are adjacent and share
        # one object.
        runs = [
            (self._kind(demand), sum(1 for _ in run)) for demand, run in groupby(gang.replicas, itemgetter(1))
        ]
        counts: dict[Kind, int] = {}
        for kind, count in runs:
            counts[kind] = counts.get(kind, 0) + count
        content = tuple(counts.items())
        request = self._requests.get(content)
        if request is None:
            request = self._requests[content] = ResourceRequest(content)
        key = (request, gang.quota, gang.region, gang.person)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = Shape(request, gang.quota)
        # Gangs of one shape share this tuple, because there may be a hundred thousand.
        return shape, request.in_order if len(runs) == len(counts) else _in_order(runs)

    def _kind(self, demand: Demand) -> Kind:
        kind = self._kinds.get(demand)
        if kind is None:
            kind = self._kinds[demand] = Kind(demand)
        return kind


def _in_order(kinds: Sequence[tuple[Kind, int]]) -> tuple[Kind, ...]:
    return tuple([kind for kind, count in kinds for _ in range(count)])


def _amounts(kinds: Kinds) -> Amounts:
    sums = {REPLICAS: 0, CPUS: 0, MEMORY: 0}
    for kind, count in kinds:
        sums[REPLICAS] += count
        sums[CPUS] += kind.cpus * count
        sums[MEMORY] += kind.demand.memory_bytes * count
        if kind.accelerator:
            devices = kind.demand.accelerators * count
            sums[kind.accelerator] = sums.get(kind.accelerator, 0) + devices
    return tuple(sums.items())


class Node(Struct):
    """A node with its replicas."""

    name: str
    #: The node's capacity. None for a node that gangs use, but the engine does not list.
    capacity: NodeCapacity | None = None
    layout: Layout = UNKNOWN_LAYOUT
    #: The total amounts of the node.
    has: Vector = (0, 0)
    #: The amounts that gangs use.
    usage: Vector = (0, 0)
    #: The amounts that are used outside this service.
    others: Vector = (0, 0)
    replicas: int = 0
    holders: dict[JobUid, Entry] = {}

    def copy(self) -> "Node":
        return replace(self, holders=self.holders.copy())

    @property
    def is_ready(self) -> bool:
        return self.capacity is not None and self.capacity.condition is NodeCondition.READY

    @property
    def free(self) -> Vector:
        """The free amounts of a known node. Negative if other users occupy resources that gangs use."""
        return plus(plus(self.has, self.usage, -1), self.others, -1)

    def change(self, kinds: Sequence[Kind], times: int) -> None:
        """Add replicas (`times` 1) or remove them (-1)."""
        for kind in kinds:
            self.usage = plus(self.usage, kind.vector(self.layout), times)
        self.replicas += len(kinds) * times
