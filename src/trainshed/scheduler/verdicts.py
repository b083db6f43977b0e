"""What could never be: gangs that no set of the known nodes could hold, and those that wait for a node to come back.

Capacities only, whatever is used now. A drained node and one that does not answer may come back: what would
fit with them waits, and is no stock-out. While no node is known at all, everything waits.
"""

from trainshed.scheduler.books import Pack
from trainshed.scheduler.rooms import Kind, Kinds, Part, Rooms, holds, slots
from trainshed.scheduler.snapshot import Snapshot

Verdict = tuple[str, bool]
"""(what is missing for ever, "" = nothing; whether READY nodes could hold it when empty)."""
GIB = 2**30


def verdict(snapshot: Snapshot, pack: Pack) -> Verdict:
    """Found once per version of the nodes."""
    version, missing, ready = pack.verdict
    if version != snapshot.version:
        missing, ready = verdict_of(snapshot, pack.kinds)
        pack.verdict = (snapshot.version, missing, ready)
    return missing, ready


def verdict_of(snapshot: Snapshot, kinds: Kinds) -> Verdict:
    """The same for a part of a gang."""
    if not snapshot.policy.strict:
        return "", bool(snapshot.loads)
    if not len(snapshot.known):
        return "", False
    if holds(snapshot.ready, kinds) is not None:
        return "", True
    if holds(snapshot.known, kinds) is not None:
        return "", False
    return shortage(snapshot.known, kinds), False


def shortage(rooms: Rooms, kinds: Kinds) -> str:
    """What of a gang these nodes cannot hold when they are empty: "needs 8 CPUs on one node; the largest node has 4"."""
    for kind, _ in kinds:
        if not nodes_that_hold(rooms, kind):
            return _too_large(rooms, kind)
    size = sum(count for _, count in kinds)
    each = "; ".join(
        f"{described(kind)} each, and there is room for {room_for(rooms, kind, count)} of them"
        for kind, count in kinds
        if room_for(rooms, kind, count) < count
    )
    if each:
        return f"needs {size} replicas at once, {each}"
    return f"needs {size} replicas at once, and the nodes cannot hold them together"


def nodes_that_hold(rooms: Rooms, kind: Kind) -> list[str]:
    """Nodes with room for one replica of a sort."""
    return [
        node
        for node in rooms
        if kind.suits(rooms.layout(node))
        and slots(rooms.vector(node), kind.vector(rooms.layout(node)))
    ]


def described(kind: Kind) -> str:
    """`8 CPUs, 52 GiB and 2 NVIDIA_TESLA_T4`."""
    parts = [cpus(kind.cpus)] if kind.cpus else []
    if kind.demand.memory_bytes:
        parts.append(memory(kind.demand.memory_bytes))
    if kind.accelerator:
        parts.append(f"{kind.demand.accelerators} {kind.accelerator}")
    if len(parts) < 2:
        return "".join(parts) or "nothing"
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def cpus(thousandths: int) -> str:
    return f"{thousandths / 1000:g} CPU{'' if thousandths == 1000 else 's'}"


def memory(size: int) -> str:
    """Bytes as GiB, two decimals where they say something."""
    return f"{round(size / GIB, 2):g} GiB"


def _too_large(rooms: Rooms, kind: Kind) -> str:
    """One replica fits on no node: which single thing is missing, or that no node has all of it."""
    wanted = kind.demand.accelerators
    if kind.accelerator:
        most = max((_devices(rooms, n, kind.accelerator) for n in rooms), default=0)
        if most < wanted:
            there = f"the largest node has {most}" if most else "no node has any"
            return f"needs {wanted} {kind.accelerator} on one node; {there}"
    most = max(rooms.vector(n)[-2] for n in rooms)
    if most < kind.cpus:
        return f"needs {cpus(kind.cpus)} on one node; the largest node has {most / 1000:g}"
    most = max(rooms.vector(n)[-1] for n in rooms)
    if most < kind.demand.memory_bytes:
        return (
            f"needs {memory(kind.demand.memory_bytes)} of memory on one node; "
            f"the largest node has {memory(most)}"
        )
    return f"needs {described(kind)} on one node; no node has all of it"


def _devices(rooms: Rooms, node: str, accelerator: str) -> int:
    layout = rooms.layout(node)
    return rooms.vector(node)[layout.index(accelerator)] if accelerator in layout else 0


def room_for(rooms: Rooms, kind: Kind, most: int) -> int:
    """How many replicas of a sort the nodes hold, `most` at most."""
    parts: list[Part] = []
    left = rooms.fill(kind, most, parts)
    rooms.give_back(parts)
    return most - left
