"""Feasibility check: can this gang ever fit on the known nodes, and on those that take work now?

It looks at capacities only, whatever is used now. A drained node and one that does not answer may come back:
what would fit with them waits, and is no stock-out. While no node is known at all, everything waits; while no
node of a cluster is known, everything that the cluster might take waits.
"""

from collections.abc import Iterable, Sequence

from trainshed.core.errors import listed
from trainshed.scheduler.entries import ResourceRequest
from trainshed.scheduler.model import NodeCapacity
from trainshed.scheduler.resources import (
    Kind,
    Kinds,
    NodeResources,
    count_fitting,
    count_placeable,
    find_placements,
)
from trainshed.scheduler.snapshot import Snapshot

Feasibility = tuple[str, bool]
"""(what no known node can ever give, "" = nothing; whether READY nodes could hold it when empty)."""
GIB = 2**30


def assess(snapshot: Snapshot, request: ResourceRequest) -> Feasibility:
    """Return whether the gang can fit; computed once per version of the nodes."""
    version, missing, ready = request.feasibility
    if version != snapshot.version:
        missing, ready = assess_kinds(snapshot, request.kinds)
        request.feasibility = (snapshot.version, missing, ready)
    return missing, ready


def assess_kinds(snapshot: Snapshot, kinds: Kinds) -> Feasibility:
    """Return whether these replicas of a gang can fit."""
    if not snapshot.policy.strict:
        return "", bool(len(snapshot.ready))
    if not len(snapshot.known):
        return "", False
    if find_placements(snapshot.ready, kinds):
        return "", True
    if find_placements(snapshot.known, kinds) or unreached(snapshot):
        return "", False
    return shortage(snapshot.known, kinds), False


def unreached(snapshot: Snapshot) -> list[NodeCapacity]:
    """Return the clusters that do not answer."""
    return [
        node.capacity
        for _, node in sorted(snapshot.nodes.items())
        if node.capacity is not None and node.capacity.unreached
    ]


def shortage(nodes: NodeResources, kinds: Kinds) -> str:
    """Say what of a gang these nodes cannot hold when they are empty: "needs 8 CPUs on one node; the largest
    node has 4"."""
    for kind, _ in kinds:
        if not nodes_that_hold(nodes, kind):
            return _too_large(nodes, kind)
    size = sum(count for _, count in kinds)
    texts = "; ".join(
        f"{described(kind)} each, and there is room for {count_placeable(nodes, kind, count)} of them"
        for kind, count in kinds
        if count_placeable(nodes, kind, count) < count
    )
    if texts:
        return f"needs {size} replicas at once, {texts}"
    return f"needs {size} replicas at once, and the nodes cannot hold them together"


def nodes_that_hold(nodes: NodeResources, kind: Kind) -> list[str]:
    """Return the nodes that can hold one replica of a sort."""
    return [
        node
        for node in nodes
        if kind.suits(nodes.layout(node))
        and count_fitting(nodes.vector(node), kind.vector(nodes.layout(node)))
    ]


def described(kind: Kind) -> str:
    """Describe what a replica takes: `8 CPUs, 52 GiB and 2 NVIDIA_TESLA_T4`."""
    parts = [cpus(kind.cpus)] if kind.cpus else []
    if kind.demand.memory_bytes:
        parts.append(memory(kind.demand.memory_bytes))
    if kind.accelerator:
        parts.append(f"{kind.demand.accelerators} {kind.accelerator}")
    return listed(parts) or "nothing"


def cpus(thousandths: int) -> str:
    return f"{thousandths / 1000:g} CPU{'' if thousandths == 1000 else 's'}"


def memory(size: int) -> str:
    """Return bytes as GiB, with two decimals if needed."""
    return f"{round(size / GIB, 2):g} GiB"


def _too_large(nodes: NodeResources, kind: Kind) -> str:
    """Say why one replica fits on no node: which single thing is missing, or that no node has all of it."""
    taking = [node for node in nodes if kind.is_taken(nodes.layout(node))]
    if not taking:
        return _not_taken(nodes, kind)
    of, lack = _destination(nodes, taking, kind), lacking(nodes, taking, kind)
    if lack is None:
        return f"needs {described(kind)} on one node; no node{of} has all of it"
    wanted, most = lack
    there = f"no node{of} has any" if most == "0" else f"the largest node{of} has {most}"
    return f"needs {wanted} on one node; {there}"


def lacking(nodes: NodeResources, some: Sequence[str], kind: Kind) -> tuple[str, str] | None:
    """Return what a replica needs and none of these nodes has by itself: how much it needs, and the most that
    there is on one; None: there is enough of each thing, though not on one node."""
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


def _not_taken(nodes: NodeResources, kind: Kind) -> str:
    """Say that no node is for its machine."""
    demand = kind.demand
    machine = demand.machine + (f" with {kind.accelerator}" if kind.accelerator else "")
    of = _destination(nodes, nodes, kind).removeprefix(" of ")
    if not of:
        return f"needs a node for {machine}; no node takes that"
    return f"needs a node of {of}, where {machine} goes; there is none"


def _destination(nodes: NodeResources, some: Iterable[str], kind: Kind) -> str:
    """Return ` of partition gpu`: what is known of where a replica may go; "" = nothing."""
    wanted = kind.demand.wanted
    names = {nodes.layout(node).accepts.destination(wanted) for node in some}
    return f" of {' or '.join(sorted(filter(None, names)))}" if any(names) else ""
