"""The nodes of the simulated world: which of them answer, and what a service is told of that."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from trainshed.core.units import Nanos
from trainshed.engines.port import EngineUnavailable, Node, NodeChanged, NodeState
from trainshed.testing.engine.clock import Clock
from trainshed.testing.engine.events import FaultyEventBus

SECOND = 10**9


class Times(Struct, frozen=True):
    """How long things take, nanoseconds."""

    #: After which a silent node counts as gone.
    lease: int = 30 * SECOND
    #: After which a cut-off shim has killed its program, and its replica may be called lost; longer than
    #: `lease`.
    fence: int = 120 * SECOND
    #: From a launch to its process, at most.
    start: int = SECOND // 2


class Place(Struct):
    """A node. `reachable`: the service can speak with it. `since`: when that changed last."""

    node: Node
    reachable: bool = True
    alive: bool = True
    gone: bool = False
    draining: bool = False
    since: Nanos = 0

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


class Nodes:
    """`fenced`: called with a node that has not answered until its fence has passed."""

    def __init__(
        self,
        clock: Clock,
        nodes: Sequence[Node],
        times: Times,
        bus: FaultyEventBus,
        fenced: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._times = times
        self._bus = bus
        self._fenced = fenced
        self.places = {node.name: Place(node) for node in nodes}

    def tell_all(self) -> None:
        """To a service that comes new: what is not as it should be."""
        for place in self.places.values():
            if place.gone or place.draining:
                self._tell(place, "as found")

    def require(self, node: str) -> None:
        """Raises EngineUnavailable: nothing can be started there now."""
        place = self.places[node]
        if place.gone or not place.reachable:
            raise EngineUnavailable(f"node {node} does not answer; name another one, or wait")

    def drain(self, node: str, *, draining: bool) -> None:
        place = self.places[node]
        if place.draining != draining:
            place.draining = draining
            self._tell(place, "the engine's own maintenance")

    def silence(self, node: str) -> None:
        """It answers no more: gone after its lease, fenced later, unless it is back by then."""
        place = self.places[node]
        place.reachable, place.since = False, self._clock.now
        since = place.since

        def still() -> bool:
            return not place.reachable and place.since == since

        def gone() -> None:
            if still():
                place.gone = True
                self._tell(place, "it does not answer")

        def fenced() -> None:
            if still():
                self._fenced(node)

        self._clock.after(self._times.lease, gone)
        self._clock.after(self._times.fence, fenced)

    def come_back(self, node: str) -> None:
        place = self.places[node]
        place.reachable, place.alive, place.since = True, True, self._clock.now
        if place.gone:
            place.gone = False
            self._tell(place, "it answers again")

    def _tell(self, place: Place, cause: str) -> None:
        self._bus.tell(NodeChanged(place.node.name, place.state, cause))
