"""The free amounts of each node, indexed to find the best node for a replica without checking all nodes.

Amounts are whole numbers (thousandths of a CPU, bytes, accelerators), so that a hundred thousand additions
and subtractions cause no rounding error.
"""

import functools
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from operator import attrgetter

from msgspec import Struct

from trainshed.core.capacity import Acceptance
from trainshed.scheduler.model import Demand, NodeCapacity


class Layout:
    """The meaning of the numbers in a node's vector, and the replicas that the node accepts. `layout_of`
    returns one object per distinct content, so that comparisons are cheap."""

    __slots__ = ("accepts", "types", "worth")

    def __init__(self, types: tuple[str, ...], accepts: Acceptance) -> None:
        #: The accelerator types of the node, sorted.
        self.types = types
        self.accepts = accepts
        #: Sort key of layouts. Nodes with a larger key are more versatile, so other nodes are used first.
        self.worth = len(types), types, len(accepts.open), sorted(accepts.open)

    @property
    def size(self) -> int:
        """The length of a vector."""
        return len(self.types) + 2


_layout = functools.cache(Layout)
UNKNOWN_LAYOUT = Layout((), Acceptance())
"""The layout of a node that the engine does not list."""
Vector = tuple[int, ...]
"""Amounts of a node: accelerators of each type of a layout, then thousandths of a CPU, then bytes of
memory."""
ENDLESS = 1 << 62
"""More than any existing amount. As a time: never."""


class Kind:
    """The requirements of a replica, as a vector for each layout. One object per distinct requirement."""

    __slots__ = ("__weakref__", "_suits", "_vectors", "accelerator", "cpus", "demand")

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.accelerator = demand.machine.accelerator
        self.cpus = thousandths(demand.vcpus)
        self._vectors: dict[Layout, Vector] = {}
        self._suits: dict[Layout, bool] = {}

    def vector(self, layout: Layout) -> Vector:
        """Return the amounts that one replica needs of a node with this layout. Accelerators that the node
        does not have are omitted."""
        vector = self._vectors.get(layout)
        if vector is None:
            devices = (self.demand.accelerators if t == self.accelerator else 0 for t in layout.types)
            vector = self._vectors[layout] = (*devices, self.cpus, self.demand.memory_bytes)
        return vector

    def suits(self, layout: Layout) -> bool:
        """Return whether nodes with this layout have accelerators of the required type, and accept the
        replica."""
        suits = self._suits.get(layout)
        if suits is None:
            suits = not self.accelerator or self.accelerator in layout.types
            suits = self._suits[layout] = suits and self.is_accepted_by(layout)
        return suits

    def is_accepted_by(self, layout: Layout) -> bool:
        """Return whether nodes with this layout accept the replica, if they have enough resources."""
        return layout.accepts.allows(self.demand.machine)


Kinds = tuple[tuple[Kind, int], ...]
"""The composition of a gang: kinds of replicas, and the number of each."""


class Placement(Struct, frozen=True):
    """`count` replicas of one kind on one node."""

    node: str
    kind: Kind
    count: int


def thousandths(amount: float) -> int:
    return round(amount * 1000)


def layout_of(node: NodeCapacity) -> Layout:
    return _layout(tuple(sorted([t for t, count in node.accelerators if count > 0])), node.accepts)


def capacity_of(node: NodeCapacity, layout: Layout) -> Vector:
    """Return the total amounts of a node as a vector of its layout."""
    devices = dict(node.accelerators)
    return (*[devices[t] for t in layout.types], thousandths(node.vcpus), node.memory_bytes)


def others_of(node: NodeCapacity, layout: Layout) -> Vector:
    """Return the amounts that other users of the cluster occupy on a node, as a vector of its layout."""
    devices = dict(node.others.accelerators)
    return (
        *[devices.get(t, 0) for t in layout.types],
        thousandths(node.others.vcpus),
        node.others.memory_bytes,
    )


def plus(left: Vector, right: Vector, times: int = 1) -> Vector:
    return tuple([a + b * times for a, b in zip(left, right, strict=True)])


def count_fitting(have: Vector, need: Vector) -> int:
    """Return the number of replicas that fit into `have` if each requires `need`."""
    least = ENDLESS
    for there, wanted in zip(have, need, strict=True):
        if wanted:
            count = there // wanted
            if count <= 0:
                return 0
            least = min(least, count)
    return least


class _Classes(Struct):
    """The nodes of one layout, grouped by their vector. All nodes of a class are equally suitable."""

    #: The vectors of the classes, ascending.
    keys: list[Vector] = []
    members: dict[Vector, list[str]] = {}

    def copy(self) -> "_Classes":
        members = {vector: nodes.copy() for vector, nodes in self.members.items()}
        return _Classes(self.keys.copy(), members)

    def add(self, node: str, vector: Vector) -> None:
        members = self.members.get(vector)
        if members is None:
            self.members[vector] = [node]
            insort(self.keys, vector)
        else:
            insort(members, node)

    def discard(self, node: str, vector: Vector) -> None:
        members = self.members[vector]
        if len(members) == 1:
            del self.members[vector]
            del self.keys[bisect_left(self.keys, vector)]
        else:
            del members[bisect_left(members, node)]

    def best(self, need: Vector) -> str | None:
        """Return a node of the smallest class that has `need`: with the fewest remaining accelerators, then
        CPUs, then memory. Return None without such a node. Classes ascend, so the search skips classes that
        lack a resource."""
        keys, at = self.keys, bisect_left(self.keys, need)
        while at < len(keys):
            key = keys[at]
            for place, wanted in enumerate(need):
                if key[place] < wanted:
                    at = bisect_left(keys, key[:place] + need[place:], at + 1)
                    break
            else:
                return self.members[key][0]
        return None


class NodeResources:
    """Nodes with a vector for each, such as their free amounts or their total amounts."""

    def __init__(self) -> None:
        self._vectors: dict[str, Vector] = {}
        self._layouts: dict[str, Layout] = {}
        self._classes: dict[Layout, _Classes] = {}

    def copy(self) -> "NodeResources":
        made = NodeResources()
        made._vectors, made._layouts = self._vectors.copy(), self._layouts.copy()
        made._classes = {layout: classes.copy() for layout, classes in self._classes.items()}
        return made

    def __contains__(self, node: str) -> bool:
        return node in self._vectors

    def __len__(self) -> int:
        return len(self._vectors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._vectors)

    def layout(self, node: str) -> Layout:
        return self._layouts[node]

    def vector(self, node: str) -> Vector:
        return self._vectors[node]

    def add(self, node: str, layout: Layout, vector: Vector) -> None:
        classes = self._classes.get(layout)
        if classes is None:
            classes = self._classes[layout] = _Classes()
        self._vectors[node] = vector
        self._layouts[node] = layout
        classes.add(node, vector)

    def discard(self, node: str) -> tuple[Layout, Vector] | None:
        """Remove a node, and return its vector, or None if it was unknown."""
        vector = self._vectors.pop(node, None)
        if vector is None:
            return None
        layout = self._layouts.pop(node)
        self._classes[layout].discard(node, vector)
        return layout, vector

    def move(self, node: str, vector: Vector) -> None:
        classes = self._classes[self._layouts[node]]
        classes.discard(node, self._vectors[node])
        classes.add(node, vector)
        self._vectors[node] = vector

    def best(self, kind: Kind) -> str | None:
        """Return the best node for a replica, or None if the replica fits on no node.

        The best node has the fewest types of accelerators, so that replicas without accelerators do not use
        nodes with accelerators. Of equal nodes, it accepts the fewest machine types. Of the remaining nodes,
        it has the fewest free resources.
        """
        for candidate in sorted(filter(kind.suits, self._classes), key=attrgetter("worth")):
            node = self._classes[candidate].best(kind.vector(candidate))
            if node is not None:
                return node
        return None

    def fill(self, kind: Kind, count: int, parts: list[Placement]) -> int:
        """Place up to `count` replicas, with as many per node as possible. The placements are added to
        `parts`. Return the number of unplaced replicas."""
        while count and (node := self.best(kind)) is not None:
            need = kind.vector(self._layouts[node])
            here = min(count, count_fitting(self._vectors[node], need))
            self.subtract(node, kind, here)
            parts.append(Placement(node, kind, here))
            count -= here
        return count

    def subtract(self, node: str, kind: Kind, count: int) -> None:
        """Subtract the resources of replicas from a node. A negative count adds them."""
        need = kind.vector(self._layouts[node])
        self.move(node, plus(self._vectors[node], need, -count))

    def give_back(self, parts: Sequence[Placement]) -> None:
        for part in parts:
            self.subtract(part.node, part.kind, -part.count)


def largest_first(kind: Kind) -> tuple[int, int, int]:
    return (-kind.demand.accelerators, -kind.cpus, -kind.demand.memory_bytes)


def placement_orders(kinds: Kinds) -> tuple[Kinds, ...]:
    """Return the orders in which a gang's kinds are tried: largest first, once by CPUs and once by memory."""
    if len(kinds) == 1:
        return (kinds,)

    def by_memory(item: tuple[Kind, int]) -> tuple[int, int, int]:
        demand = item[0].demand
        return (-demand.accelerators, -demand.memory_bytes, -item[0].cpus)

    first = tuple(sorted(kinds, key=lambda item: largest_first(item[0])))
    second = tuple(sorted(kinds, key=by_memory))
    return (first,) if first == second else (first, second)


def find_placements(nodes: NodeResources, kinds: Kinds) -> list[Placement] | None:
    """Return the placements of the whole gang on nodes, or None if it does not fit. Changes no nodes."""
    for order in placement_orders(kinds):
        parts: list[Placement] = []
        fits = not any(nodes.fill(kind, count, parts) for kind, count in order)
        nodes.give_back(parts)
        if fits:
            return parts
    return None


def count_placeable(nodes: NodeResources, kind: Kind, most: int) -> int:
    """Return the number of replicas of a kind that fit on the nodes, limited to `most`."""
    parts: list[Placement] = []
    left = nodes.fill(kind, most, parts)
    nodes.give_back(parts)
    return most - left
