"""A node of the simulated world as it stands, and how long things take there. Values only."""

from dataclasses import dataclass

from trainshed.engines.port import Node, NodeState

SECOND = 10**9


@dataclass(frozen=True, slots=True)
class Times:
    """How long things take, ns. `lease`: a silent node counts as gone after it. `fence`: then a cut-off shim has killed
    its program, and its replica may be called lost; longer than `lease`. `start`: from a launch to its process, at most."""

    lease: int = 30 * SECOND
    fence: int = 120 * SECOND
    start: int = SECOND // 2


@dataclass(slots=True)
class Place:
    """A node. `reachable`: the service can speak with it. `since`: when that changed last."""

    node: Node
    reachable: bool = True
    alive: bool = True
    gone: bool = False
    draining: bool = False
    since: int = 0

    @property
    def state(self) -> NodeState:
        if self.gone:
            return NodeState.GONE
        return NodeState.DRAINING if self.draining else NodeState.UP

    @property
    def has(self) -> tuple[float, int, int]:
        """vCPUs, bytes of memory, accelerators."""
        accelerators = sum(count for _, count in self.node.accelerators)
        return self.node.vcpus, self.node.memory_bytes, accelerators
