"""Finds out what this machine offers (processors, memory, control groups) and divides it among virtual
nodes."""

import contextlib
import hashlib
import os
import pwd
import re
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.capacity import Node
from trainshed.engines.launch.devices import Device, totals
from trainshed.replica.system import cgroups

NAME = "local"

_NODE_NAME = re.compile(rf"{NAME}(-\d+)?")


class Declared(Struct, frozen=True):
    """What each virtual node is declared to have, whatever the machine has, for strict mode and
    demonstrations. 0 or () = its share of the machine."""

    vcpus: float = 0
    memory_bytes: int = 0
    accelerators: tuple[tuple[str, int], ...] = ()


def identity(data: Path) -> str:
    """Return eight hexadecimal digits that tell this data directory from those of other services on the
    machine."""
    return hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:8]


def is_node(name: str) -> bool:
    """Whether a node of this machine has that name, now or with another number of nodes."""
    return _NODE_NAME.fullmatch(name) is not None


def node(group_of_memory: str | None) -> Node:
    """Return the machine as one node, without its GPUs. `group_of_memory`: whose limit, if any,
    is the machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # A container sees its own group as the topmost, mostly read-only, so that it is no base.
    for group in filter(None, (group_of_memory, cgroups.ROOT, f"{cgroups.ROOT}/memory")):
        memory = min(memory, cgroups.memory_limit(group) or memory)
    return Node(NAME, len(os.sched_getaffinity(0)), memory)


def private_places() -> tuple[Path, ...]:
    """Return the directories that belong to the service's user and that no program may see: the home
    directory with its keys, and sockets of the user's session."""
    places = [Path("/run/user")]
    with contextlib.suppress(KeyError, OSError):  # The user has no entry, or no home.
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir).resolve()
        # System users live in places like / and /var/empty.
        if len(home.parts) > 1 and home.stat().st_uid == os.geteuid():
            places.append(home)
    return tuple(places)


def share(devices: tuple[Device, ...], count: int) -> dict[str, tuple[Device, ...]]:
    """Divide the GPUs among `count` virtual nodes; returns them by node."""
    if count == 1:
        return {NAME: devices}
    return {f"{NAME}-{index}": devices[index::count] for index in range(count)}


def split(
    whole: Node, shares: dict[str, tuple[Device, ...]], declared: Declared
) -> tuple[Node, ...]:
    """Divide the machine into virtual nodes, each with an equal share of it or with what it is declared to
    have."""
    count = len(shares)
    return tuple(
        replace(
            whole,
            name=name,
            vcpus=declared.vcpus or whole.vcpus / count,
            memory_bytes=declared.memory_bytes or whole.memory_bytes // count,
            accelerators=declared.accelerators or totals(devices),
        )
        for name, devices in shares.items()
    )
