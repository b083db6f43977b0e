"""What this machine offers: processors, memory, GPUs, control groups."""

import hashlib
import os
import re
from pathlib import Path

from trainshed.engines.port import Node
from trainshed.replica import cgroups

NODE_NAME = "local"


def identity(data: Path) -> str:
    """Eight hexadecimal digits that tell this data directory from another service's on the machine."""
    return hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:8]


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
    return Node(NODE_NAME, vcpus, memory, gpus)
