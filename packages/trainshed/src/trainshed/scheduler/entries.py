"""The snapshot's entries for each gang, quota and project: written by `snapshot`, read by
`planning`."""

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
"""(created, uid): older sorts first."""
Takes = tuple[tuple[str, int], ...]
"""A gang's amounts of shared resources: replicas, CPUs, memory, devices by type."""


class Meter(Struct):
    """A limit on a sum: a quota, or the number of replicas at once. Amounts are in thousandths."""

    key: QuotaKey
    #: A single gang may exceed the limit, as with the number of replicas.
    alone: bool = False
    #: None = there is no limit.
    limit: int | None = None
    used: int = 0
    #: The total amount for all waiting gangs.
    waiting: int = 0
    #: Running gangs and their amounts.
    holders: dict[JobUid, int] = {}

    def copy(self) -> "Meter":
        return replace(self, holders=self.holders.copy())

    def hold(self, uid: JobUid, amount: int, times: int) -> None:
        """Count what a gang uses (1), or no more (-1)."""
        self.used += amount * times
        if times > 0:
            self.holders[uid] = amount
        else:
            del self.holders[uid]

    def has(self, amount: int) -> bool:
        """Whether `amount` more may be used now."""
        return self.limit is None or self.allows(amount, self.limit - self.used, self.used)

    def allows(self, amount: int, free: int, used: int) -> bool:
        """Whether `amount` more may be used where `free` is left and `used` is in use."""
        return amount <= free or (self.alone and used <= 0)


class Past:
    """The past use of projects and users, for fair share: as if they still used it, times 1 - 2 **
    -(duration / half_life), and half as much after each `half_life` (ns)."""

    def __init__(self, half_life: int) -> None:
        self._half_life = half_life
        #: By project and user, None = all users together, scaled to `_since`. New use is scaled
        #: up, so that the many old values stay unchanged.
        self._used: dict[tuple[str, str | None], dict[str, float]] = {}
        #: The moment as at which it counts (ns); 0 = nothing is remembered.
        self._since = 0
        #: The present weight of `_used`.
        self._fading = 1.0

    def copy(self) -> "Past":
        made = Past(self._half_life)
        made._used, made._since, made._fading = self._used.copy(), self._since, self._fading
        return made

    def add(self, used: MachineTime, began: Nanos, ended: Nanos) -> None:
        """Remember what a project used between two moments."""
        if ended <= began:
            return
        self._since = self._since or ended
        # A value that doubles a thousand times exceeds the range of a float.
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
            # Anew, since copies share the former.
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
        """Set the moment for which it is counted."""
        if self._since:
            self._fading = 2 ** -((now - self._since) / self._half_life)

    def beside(
        self, project_id: str, used: Mapping[str, float], person: str | None = None
    ) -> Mapping[str, float]:
        """Return the amounts that count for the share of a project, or of a user in it, with
        `used` as the present use."""
        past = self._used.get((project_id, person))
        if not past:
            return used
        sums = dict(used)
        for what, value in past.items():
            sums[what] = sums.get(what, 0) + value * self._fading
        return sums


def share(used: Mapping[str, float], totals: Mapping[str, int]) -> float:
    """Return the dominant share: the largest part of any one resource that is used."""
    most = 0.0
    for what, amount in used.items():
        total = totals.get(what)
        if total:
            most = max(most, amount / total)
    return most


class ResourceRequest:
    """A gang's requirements of nodes."""

    __slots__ = ("__weakref__", "feasibility", "in_order", "kinds", "takes")

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        #: The sort of each replica of a gang in which those of one sort stand side by side.
        self.in_order = _in_order(kinds)
        self.takes = _takes(kinds)
        #: The version of the nodes, and what `fitting.assess` found for it when they are empty.
        self.feasibility: tuple[int, str | None, bool] = (-1, None, True)


class Shape:
    """The common properties of gangs with equal chances: if one does not fit, no other of its
    project does."""

    __slots__ = ("__weakref__", "amounts", "charged", "kinds", "replicas", "request")

    def __init__(self, request: ResourceRequest, quota: Sequence[tuple[str, float]]) -> None:
        self.request = request
        self.kinds = request.kinds
        #: Its amount of each quota, by metric.
        self.amounts = tuple([(metric, thousandths(value)) for metric, value in quota if value])
        #: Its amount of the number of replicas.
        self.replicas = thousandths(sum(count for _, count in request.kinds))
        #: The amounts that such a gang is charged, by project and meter: a shape belongs to one
        #: region.
        self.charged: dict[str, Charged] = {}


Charged = tuple[tuple[QuotaKey, int], ...]
"""A gang's amount of each meter; the number of replicas is last."""


_NOTHING: Mapping[str, Sequence[Kind]] = {}


class Entry(Struct, order=True, gc=False):
    """One gang in the snapshot. The older sorts first.

    There may be a hundred thousand, so each is small, and the garbage collector need not look at them: what
    they refer to leads back to none of them."""

    #: No two entries agree in both of these, so nothing else is ever compared.
    created: Nanos
    uid: JobUid
    state: GangState
    gang: GangRequest
    shape: Shape
    #: The sort of each of its replicas, in their order.
    kinds: tuple[Kind, ...]
    meters: Charged
    #: From when on it could have been placed (ns); its patience counts from here.
    eligible_at: Nanos
    #: Its replicas on each node.
    held: Mapping[str, Sequence[Kind]]

    @property
    def age(self) -> Age:
        return self.created, self.uid

    @property
    def takes(self) -> Takes:
        return self.shape.request.takes

    @property
    def is_placed(self) -> bool:
        """Whether it was admitted: it runs, in part at least, or has lost its places since."""
        return bool(self.state.places or self.state.unplaced)

    @property
    def waits(self) -> bool:
        return not self.is_placed and not self.state.leaving

    @property
    def over_at(self) -> int:
        """When what it holds is free again at the latest, as far as is known (ns)."""
        return 0 if self.state.leaving else self.state.until or ENDLESS

    def kinds_by_replica(self) -> dict[ReplicaId, Kind]:
        return dict(zip((replica for replica, _ in self.gang.replicas), self.kinds, strict=True))


def entry_of(state: GangState, shape: Shape, kinds: tuple[Kind, ...], meters: Charged) -> Entry:
    """Return the entry of a gang in this state."""
    gang, since, until = state.gang, state.waiting_since, state.not_before
    eligible_at = since if since > until else until
    held = _held(state, kinds) if state.places else _NOTHING
    return Entry(gang.created, gang.uid, state, gang, shape, kinds, meters, eligible_at, held)


def _held(state: GangState, kinds: tuple[Kind, ...]) -> Mapping[str, Sequence[Kind]]:
    sorts = dict(zip((replica for replica, _ in state.gang.replicas), kinds, strict=True))
    held: dict[str, list[Kind]] = {}
    for replica, node in state.places:
        held.setdefault(node, []).append(sorts[replica])
    return held


def assign_replicas(entry: Entry, parts: Sequence[Placement]) -> tuple[tuple[ReplicaId, str], ...]:
    """Return which replica goes where. In relaxed mode the nodes come in the order of the replicas."""
    replicas = [replica for replica, _ in entry.gang.replicas]
    nodes: dict[Kind, list[str]] = {}
    for part in parts:
        nodes.setdefault(part.kind, []).extend([part.node] * part.count)
    if len(nodes) == 1:
        return tuple(zip(replicas, *nodes.values(), strict=True))
    places = {kind: iter(names) for kind, names in nodes.items()}
    return tuple(
        (replica, next(places[kind])) for replica, kind in zip(replicas, entry.kinds, strict=True)
    )


class Shapes:
    """Gives equal gangs the same `Shape`, and equal replicas the same `Kind`, as long as one is in use."""

    def __init__(self) -> None:
        self._kinds: WeakValueDictionary[Demand, Kind] = WeakValueDictionary()
        self._requests: WeakValueDictionary[Kinds, ResourceRequest] = WeakValueDictionary()
        self._shapes: WeakValueDictionary[object, Shape] = WeakValueDictionary()

    def of(self, gang: GangRequest) -> tuple[Shape, tuple[Kind, ...]]:
        """Return the gang's shape, and the sort of each of its replicas."""
        # The replicas of a pool stand side by side, and share one object.
        runs = [
            (self._kind(demand), sum(1 for _ in run))
            for demand, run in groupby(gang.replicas, itemgetter(1))
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
        # Gangs of one shape share this tuple: there may be a hundred thousand.
        return shape, request.in_order if len(runs) == len(counts) else _in_order(runs)

    def _kind(self, demand: Demand) -> Kind:
        kind = self._kinds.get(demand)
        if kind is None:
            kind = self._kinds[demand] = Kind(demand)
        return kind


def _in_order(kinds: Sequence[tuple[Kind, int]]) -> tuple[Kind, ...]:
    return tuple([kind for kind, count in kinds for _ in range(count)])


def _takes(kinds: Kinds) -> Takes:
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
    """A node and what is on it."""

    name: str
    #: None = gangs name it, and the engine does not (any more).
    capacity: NodeCapacity | None = None
    layout: Layout = UNKNOWN_LAYOUT
    #: All that it has.
    has: Vector = (0, 0)
    #: Amounts that gangs use.
    used: Vector = (0, 0)
    #: Amounts that are used outside this service.
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
        """The free amounts of a known node; below zero where other users took amounts that gangs
        hold."""
        return plus(plus(self.has, self.used, -1), self.others, -1)

    def change(self, kinds: Sequence[Kind], times: int) -> None:
        """Add replicas (1) or remove them (-1)."""
        for kind in kinds:
            self.used = plus(self.used, kind.vector(self.layout), times)
        self.replicas += len(kinds) * times
