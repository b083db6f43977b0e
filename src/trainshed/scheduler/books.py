"""What is noted of each gang, quota and project while it is in the snapshot. Kept by `snapshot`, read by a decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from trainshed.core.capacity import QuotaKey
from trainshed.core.names import JobUid, ReplicaId
from trainshed.scheduler.model import Demand, Gang, Standing
from trainshed.scheduler.rooms import ENDLESS, Kind, Kinds, Part, thousandths

REPLICAS = "replicas"
CPUS = "cpus"
MEMORY = "memory"
Age = tuple[int, JobUid]
"""(created, uid): older sorts first."""
Takes = tuple[tuple[str, int], ...]
"""What a gang takes of what projects share: replicas, CPUs, memory, devices by type."""


class Meter:
    """A limit on a sum: a quota, or (`alone`) the number of replicas at once, which one gang alone may exceed.

    `limit` None: none. Amounts in thousandths. `holders`: running gangs and their amounts.
    """

    __slots__ = ("alone", "holders", "key", "limit", "used", "waiting")

    def __init__(self, key: QuotaKey, *, alone: bool = False) -> None:
        self.key = key
        self.alone = alone
        self.limit: int | None = None
        self.used = 0
        self.waiting = 0
        self.holders: dict[JobUid, int] = {}

    def lets(self, amount: int, free: int, used: int) -> bool:
        """Whether `amount` more may be used where `free` is left and `used` is in use."""
        return amount <= free or (self.alone and used <= 0)


class Project:
    """What a project uses now, for fair share. `running`: its gangs with room, oldest first."""

    __slots__ = ("id", "running", "used")

    def __init__(self, project_id: str) -> None:
        self.id = project_id
        self.used: dict[str, int] = {}
        self.running: list[Age] = []

    def add(self, takes: Takes, times: int) -> None:
        for what, amount in takes:
            self.used[what] = self.used.get(what, 0) + amount * times


def share(used: Mapping[str, int], totals: Mapping[str, int]) -> float:
    """The dominant share: the largest part of any one resource that is used."""
    most = 0.0
    for what, amount in used.items():
        total = totals.get(what)
        if total:
            most = max(most, amount / total)
    return most


class Pack:
    """What a gang needs of nodes. `verdict`: what was found about its chances on empty nodes (`verdicts`), with the
    version of the nodes that it is about."""

    __slots__ = ("__weakref__", "kinds", "verdict")

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self.verdict: tuple[int, str, bool] = (-1, "", True)


class Shape:
    """Gangs of one shape have the same chances: if one does not fit, none of the same project does."""

    __slots__ = ("__weakref__", "kinds", "longest", "pack")

    def __init__(self, pack: Pack, longest: int) -> None:
        self.pack = pack
        self.kinds = pack.kinds
        self.longest = longest


class Entry:
    """One gang in the snapshot. `meters`: what it takes of each, of the number of replicas last. `held`: what it has on
    each node. `ripe_at`: from when on it could have been placed; its patience counts from here (ns)."""

    __slots__ = (
        "age",
        "gang",
        "held",
        "kinds",
        "meters",
        "project",
        "ripe_at",
        "shape",
        "standing",
        "takes",
    )

    def __init__(
        self,
        standing: Standing,
        shape: Shape,
        kinds: tuple[Kind, ...],
        meters: tuple[tuple[Meter, int], ...],
        project: Project,
    ) -> None:
        gang = standing.gang
        self.standing = standing
        self.gang = gang
        self.shape = shape
        self.kinds = kinds
        self.meters = meters
        self.project = project
        self.age: Age = (gang.created, gang.uid)
        self.ripe_at = max(standing.waiting_since, standing.not_before)
        self.takes = _takes(shape.kinds)
        self.held: dict[str, list[Kind]] = {}

    @property
    def has_room(self) -> bool:
        """Whether it runs, in part at least: a gang that lost every place still has its turn behind it."""
        return bool(self.standing.places or self.standing.homeless)

    @property
    def waits(self) -> bool:
        return not self.has_room and not self.standing.leaving

    @property
    def over_at(self) -> int:
        """When its room comes back at the latest, as far as is known (ns)."""
        if self.standing.leaving:
            return 0
        return self.standing.until or ENDLESS


@dataclass(frozen=True, slots=True)
class Kept:
    """Room is kept for `entry` from `at` on (ns; 0 = from no known time on)."""

    entry: Entry
    at: int


def named(entry: Entry, parts: Sequence[Part]) -> tuple[tuple[ReplicaId, str], ...]:
    """Which replica goes where. In relaxed mode the nodes come in the order of the replicas."""
    replicas = [replica for replica, _ in entry.gang.replicas]
    if len(parts) == 1:
        return tuple([(replica, parts[0].node) for replica in replicas])
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
    """Gives equal gangs the same `Shape`, and equal replicas the same `Kind`, as long as somebody has one."""

    def __init__(self) -> None:
        self._kinds: WeakValueDictionary[Demand, Kind] = WeakValueDictionary()
        self._packs: WeakValueDictionary[object, Pack] = WeakValueDictionary()
        self._shapes: WeakValueDictionary[object, Shape] = WeakValueDictionary()

    def of(self, gang: Gang) -> tuple[Shape, tuple[Kind, ...]]:
        """The gang's shape, and the sort of each of its replicas."""
        counts: dict[Demand, int] = {}
        for _, demand in gang.replicas:
            counts[demand] = counts.get(demand, 0) + 1
        kinds = {demand: self._kind(demand) for demand in counts}
        content = tuple(counts.items())
        pack = self._packs.get(content)
        if pack is None:
            sorts = tuple((kinds[demand], count) for demand, count in content)
            pack = self._packs[content] = Pack(sorts)
        key = (content, gang.quota, gang.region, gang.longest)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = Shape(pack, gang.longest)
        return shape, tuple(kinds[demand] for _, demand in gang.replicas)

    def _kind(self, demand: Demand) -> Kind:
        found = self._kinds.get(demand)
        if found is None:
            found = self._kinds[demand] = Kind(demand)
        return found


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


def amount(value: float) -> int:
    """An amount of a quota in the unit of its meter."""
    return thousandths(value)
