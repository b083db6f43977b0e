"""What this machine offers: processors, memory, GPUs, control groups."""

import hashlib
import os
import re
from pathlib import Path

from trainshed.engines.port import Node
from trainshed.replica import cgroups

_NODE_NAME = re.compile(r"local(-\d+)?")


def identity(data: Path) -> str:
    """Eight hexadecimal digits that tell this data directory from another service's on the machine."""
    return hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:8]


def is_node(name: str) -> bool:
    """Whether a name is that of a node of this machine, now or with another number of nodes."""
    return _NODE_NAME.fullmatch(name) is not None


def split(whole: Node, count: int) -> tuple[Node, ...]:
    """The machine as `count` virtual nodes, each with an equal share of it; a GPU is on one of them."""
    if count == 1:
        return (whole,)
    return tuple(
        Node(
            f"{whole.name}-{index}",
            whole.vcpus / count,
            whole.memory_bytes // count,
            whole.gpus // count + (index < whole.gpus % count),
        )
        for index in range(count)
    )


def node(memory_base: str) -> Node:
    """The machine as one node. `memory_base`: the control group whose limit, if any, is the memory there is."""
    if hasattr(os, "sched_getaffinity"):
        vcpus = len(os.sched_getaffinity(0))
    else:
        vcpus = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if limit := cgroups.memory_limit(memory_base):
        memory = min(memory, limit)
    devices = Path("/dev")
    gpus = sum(1 for entry in devices.iterdir() if re.fullmatch(r"nvidia\d+", entry.name))
    return Node("local", vcpus, memory, gpus)
