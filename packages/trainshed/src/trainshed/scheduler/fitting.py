"""Checks whether a gang fits, and returns the missing amounts if not. One check is for empty nodes and uses
capacities only. The other check is for the free amounts during a plan, which assigns and reserves resources.

Drained nodes, and nodes that do not respond, may return. A gang that would fit on them waits and is not a
stock-out. While no node is known, every gang waits. While no node of a cluster is known, every gang that the
cluster might accept waits.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

from trainshed.core.capacity import QuotaKey
from trainshed.core.errors import format_list
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.scheduler.entries import Entry, ResourceRequest
from trainshed.scheduler.model import NodeCapacity
from trainshed.scheduler.resources import (
    ENDLESS,
    Kind,
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

Feasibility = tuple[str | None, bool]
"""(resources that no known node can provide, or None; whether empty READY nodes could run the gang)."""
GIB = 2**30


def assess(snapshot: Snapshot, request: ResourceRequest) -> Feasibility:
    """Return whether a gang can ever fit. The result is computed once per version of the nodes."""
    version, missing, ready = request.feasibility
    if version != snapshot.version:
        missing, ready = assess_kinds(snapshot, request.kinds)
        request.feasibility = (snapshot.version, missing, ready)
    return missing, ready


def assess_kinds(snapshot: Snapshot, kinds: Kinds) -> Feasibility:
    """Return whether these replicas of a gang can ever fit."""
    if not snapshot.policy.strict:
        return None, bool(len(snapshot.ready))
    if not len(snapshot.total_resources):
        return None, False
    if find_placements(snapshot.ready, kinds):
        return None, True
    if find_placements(snapshot.total_resources, kinds) or unreachable_clusters(snapshot):
        return None, False
    return shortage(snapshot.total_resources, kinds), False


def unreachable_clusters(snapshot: Snapshot) -> list[NodeCapacity]:
    return [
        node.capacity
        for _, node in sorted(snapshot.nodes.items())
        if node.capacity is not None and node.capacity.unreached
    ]


def shortage(nodes: NodeResources, kinds: Kinds) -> str:
    """Return, as text, the requirement of a gang that these nodes cannot meet even if they are empty: "needs
    8 CPUs on one node; the largest node has 4"."""
    for kind, _ in kinds:
        if not fitting_nodes(nodes, kind):
            return _too_large(nodes, kind)
    size = sum(count for _, count in kinds)
    texts = "; ".join(
        (f"{describe(kind)} each, and there is capacity for {count_placeable(nodes, kind, count)} of them")
        for kind, count in kinds
        if count_placeable(nodes, kind, count) < count
    )
    if texts:
        return f"needs {size} replicas at once, {texts}"
    return f"needs {size} replicas at once, and the nodes cannot hold them together"


def fitting_nodes(nodes: NodeResources, kind: Kind) -> list[str]:
    """Return the nodes that could run one replica of a kind if they were empty."""
    return [
        node
        for node in nodes
        if kind.suits(nodes.layout(node))
        and count_fitting(nodes.vector(node), kind.vector(nodes.layout(node)))
    ]


def describe(kind: Kind) -> str:
    """Return the requirements of a replica as text: `8 CPUs, 52 GiB and 2 NVIDIA_TESLA_T4`."""
    parts = [cpus(kind.cpus)] if kind.cpus else []
    if kind.demand.memory_bytes:
        parts.append(memory(kind.demand.memory_bytes))
    if kind.accelerator:
        parts.append(f"{kind.demand.accelerators} {kind.accelerator}")
    return format_list(parts) or "nothing"


def cpus(thousandths: int) -> str:
    return f"{thousandths / 1000:g} CPU{'' if thousandths == 1000 else 's'}"


def memory(size: int) -> str:
    """Return bytes as GiB, with two decimals if needed."""
    return f"{round(size / GIB, 2):g} GiB"


def _too_large(nodes: NodeResources, kind: Kind) -> str:
    """Return, as text, the reason why one replica fits on no node: the single insufficient resource, or that
    no node has all of them."""
    taking = [node for node in nodes if kind.is_accepted_by(nodes.layout(node))]
    if not taking:
        return _explain_rejection(nodes, kind)
    of, lack = _destination(nodes, taking, kind), scarce_resource(nodes, taking, kind)
    if lack is None:
        return f"needs {describe(kind)} on one node; no node{of} has all of it"
    wanted, most = lack
    there = f"no node{of} has any" if most == "0" else f"the largest node{of} has {most}"
    return f"needs {wanted} on one node; {there}"


def scarce_resource(nodes: NodeResources, some: Sequence[str], kind: Kind) -> tuple[str, str] | None:
    """Return the resource that is insufficient on every one of these nodes, with the needed amount and the
    maximum on one node. Return None if each resource is sufficient on some node, but no node has enough of
    all of them."""
    vectors, demand = [nodes.vector(node) for node in some], kind.demand
    if kind.accelerator:
        layouts = ((node, nodes.layout(node).types) for node in some)
        devices = [
            nodes.vector(node)[types.index(kind.accelerator)]
            for node, types in layouts
            if kind.accelerator in types
        ]
        if (most := max(devices, default=0)) < demand.accelerators:
            return f"{demand.accelerators} {kind.accelerator}", str(most)
    if (most := max((vector[-2] for vector in vectors), default=0)) < kind.cpus:
        return cpus(kind.cpus), f"{most / 1000:g}"
    if (most := max((vector[-1] for vector in vectors), default=0)) < demand.memory_bytes:
        return f"{memory(demand.memory_bytes)} of memory", memory(most)
    return None


def _explain_rejection(nodes: NodeResources, kind: Kind) -> str:
    """Return the explanation that no node accepts the machine type."""
    demand = kind.demand
    devices = f" with {kind.accelerator}" if kind.accelerator else ""
    machine = f"{demand.machine.type or 'its machine'}{devices}"
    of = _destination(nodes, nodes, kind).removeprefix(" of ")
    if not of:
        return f"needs a node for {machine}; no node accepts it"
    return f"needs a node of {of}, where {machine} runs; none exists"


def _destination(nodes: NodeResources, some: Iterable[str], kind: Kind) -> str:
    """Return the part of the cluster where the replica's machine type runs, as text such as ` of partition
    gpu`. Return "" if it is unknown. `some`: the nodes whose routes are used."""
    machine = kind.demand.machine
    names = {nodes.layout(node).accepts.destination(machine) for node in some}
    return f" of {' or '.join(sorted(filter(None, names)))}" if any(names) else ""


class PlanTransaction:
    """The changes of one plan to its snapshot, which the plan consumes.

    Resources that are reserved on a node for later are subtracted from its free resources, unless other
    replicas release enough resources in time. Other gangs may use the remaining resources.
    """

    def __init__(self, snapshot: Snapshot, now: Nanos) -> None:
        self.snapshot = snapshot
        self.now = now
        self.strict = snapshot.policy.strict
        #: The amounts that may be assigned now.
        self.free = snapshot.free
        #: The gangs with reserved resources.
        self.reservations: list[JobUid] = []
        #: End of the next back-off (ns), or None.
        self.next_release = snapshot.queue.release_due(now)
        #: Reserved amounts of a node that are not subtracted from `free`, because they are not free yet.
        self._promised: dict[str, Vector] = {}
        #: By meter: the reserved amount (`_claims`), and the maximum amount that may still be assigned
        #: (`_spares`).
        self._claims: dict[QuotaKey, int] = {}
        self._spares: dict[QuotaKey, int] = {}
        #: Number of replicas on each READY node, for relaxed mode.
        self._loads = {node: snapshot.nodes[node].replicas for node in snapshot.ready}

    # Methods for the free amounts of quotas

    def free_quota(self, key: QuotaKey) -> int:
        """Return the amount that is free within the limit of a meter, without the reserved amount."""
        meter = self.snapshot.meters[key]
        if meter.limit is None:
            return ENDLESS
        return meter.limit - meter.usage - self._claims.get(key, 0)

    def allows(self, entry: Entry) -> bool:
        """Return whether quotas and the maximum number of replicas permit the start of a gang now."""
        return all(
            self.snapshot.meters[key].has(amount) and amount <= self._spares.get(key, ENDLESS)
            for key, amount in entry.meters
        )

    # Methods for the free amounts of nodes

    def fit(self, kinds: Kinds, without: str | None = None) -> list[Placement] | None:
        """Place a whole gang, or return None if it does not fit. `without`: a node that is not used. In
        relaxed mode, each replica goes to the node with the fewest replicas."""
        if not self.strict:
            return self._deal(kinds, without)
        hidden = self.free.discard(without) if without else None
        parts = find_placements(self.free, kinds)
        if without and hidden:
            self.free.add(without, *hidden)
        self.assign(parts or ())
        return parts

    def assign(self, parts: Sequence[Placement]) -> None:
        """Subtract the resources of these placements, which are known to be free, from the nodes."""
        for part in parts if self.strict else ():
            self.free.subtract(part.node, part.kind, part.count)

    def admit(self, entry: Entry) -> None:
        """Charge the project and the quotas of a gang that starts."""
        self.snapshot.use(entry, 1)
        for key, amount in entry.meters:
            self.snapshot.meters[key].usage += amount
            if key in self._spares:
                self._spares[key] -= amount

    def base(self, node: str) -> Vector | None:
        """Return the free amounts of a node without the reserved amounts, which may be negative. Return None
        if the node accepts no replicas."""
        if node not in self.free:
            return None
        free, promised = self.free.vector(node), self._promised.get(node)
        return plus(free, promised, -1) if promised else free

    @contextmanager
    def with_extra(self, extra: Mapping[str, Vector]) -> Generator[NodeResources]:
        """Set `free` to the unreserved free amounts plus `extra`, the amounts that would become free on
        nodes. At the end of the block, `free` has its former value."""
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
        """Reserve resources of nodes and quotas for a gang. `extra`: amounts that become free on nodes before
        its start. `spares`: the remaining amounts of its meters at that time."""
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

    def _deal(self, kinds: Kinds, without: str | None) -> list[Placement] | None:
        size = sum(count for _, count in kinds)
        usable = sorted((load, node) for node, load in self._loads.items() if node != without)
        if not usable:
            return None
        nodes = [node for _, node in islice(cycle(usable[:size]), size)]
        for node in nodes:
            self._loads[node] += 1
        return [Placement(node, kinds[0][0], 1) for node in nodes]


class Need:
    """The missing amounts of a gang, and a simulation of releases by other gangs.

    Each release is simulated separately, and the freed amounts are counted until the gang would fit. `kinds`:
    the part of the gang to place, if the gang already has its quotas. None: the whole gang, with its quotas.
    `quotas_only`: whether to ignore nodes and the number of replicas.
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
            and not (quotas_only and self._all_meters[key].is_exclusive)
        ]
        self._freed: dict[QuotaKey, int] = dict.fromkeys((key for key, _ in self._meters), 0)
        self._extra: dict[str, Vector] = {}
        with transaction.with_extra({}) as free:
            self._lacking = {kind: count - count_placeable(free, kind, count) for kind, count in self._kinds}

    @property
    def is_met(self) -> bool:
        """Return whether the gang could start after the simulated releases."""
        return self.is_sufficient and (len(self._kinds) <= 1 or self.places() is not None)

    @property
    def is_sufficient(self) -> bool:
        """Return whether the amounts are sufficient for each kind of replica on its own."""
        return self.quotas_met and all(lack <= 0 for lack in self._lacking.values())

    @property
    def quotas_met(self) -> bool:
        return all(self._allows(key, amount) for key, amount in self._meters)

    @property
    def short_of_quota(self) -> bool:
        """Return whether a quota of the gang's project is used up. Such a shortage delays only gangs of this
        project."""
        return any(
            not self._all_meters[key].is_exclusive and not self._allows(key, amount)
            for key, amount in self._meters
        )

    def add(self, gang: Entry, times: int = 1) -> bool:
        """Simulate the release of another gang, or with -1 undo it. Return False if the release makes no
        difference."""
        matters = False
        for key, value in gang.meters:
            if key in self._freed:
                self._freed[key] += value * times
                matters = True
        if not self._nodes:
            return matters
        for node, there in gang.kinds_by_node.items():
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
        """Return the placements of the gang on nodes after the simulated releases, or None if it does not
        fit."""
        with self._transaction.with_extra(self._extra) as free:
            return find_placements(free, self._kinds)

    def reserve(self) -> list[Placement]:
        """Reserve the resources of the gang, and return its placements on nodes."""
        parts = (self.places() if self._nodes else None) or []
        spares = [(key, max(0, self._free_amount(key) - amount)) for key, amount in self._meters]
        self._transaction.reserve(self.entry, parts, self._extra, spares)
        return parts

    def _allows(self, key: QuotaKey, amount: int) -> bool:
        meter = self._all_meters[key]
        return meter.allows(amount, self._free_amount(key), meter.usage - self._freed[key])

    def _free_amount(self, key: QuotaKey) -> int:
        return self._transaction.free_quota(key) + self._freed[key]
