"""Nodes as `/trainshed/v1` gives them, with types. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.core.capacity import NodeCondition


@dataclass(frozen=True, slots=True)
class HolderView:
    """A replica that has accelerators of a node. `gpus`: uuids of those that it was really given."""

    job: str
    replica: str
    accelerator: str
    accelerators: int
    gpus: tuple[str, ...]

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "HolderView":
        """Read one of a node's `replicas`."""
        return HolderView(
            found["job"],
            found["replica"],
            found.get("accelerator", ""),
            found.get("accelerators", 0),
            tuple(found.get("gpus", ())),
        )


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node and what of it is used. `accelerators`: (type, count, used); `replicas`: (job, replica); `holders`: those of
    them that have accelerators. Memory in bytes."""

    name: str
    condition: NodeCondition
    cause: str
    vcpus: float
    used_vcpus: float
    memory_bytes: int
    used_memory_bytes: int
    accelerators: tuple[tuple[str, int, int], ...]
    replicas: tuple[tuple[str, str], ...]
    holders: tuple[HolderView, ...] = ()

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "NodeView":
        """Read one of the `nodes`."""
        return NodeView(
            found["name"],
            NodeCondition(found["condition"]),
            found["cause"],
            found["vcpus"],
            found["usedVcpus"],
            found["memoryBytes"],
            found["usedMemoryBytes"],
            tuple((each["type"], each["count"], each["used"]) for each in found["accelerators"]),
            tuple((each["job"], each["replica"]) for each in found["replicas"]),
            tuple(
                holder for holder in map(HolderView.parse, found["replicas"]) if holder.accelerators
            ),
        )
