"""The nodes of the simulated world: which of them answer, and the events that report it."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from trainshed.core.units import Nanos
from trainshed.engines.port import EngineUnavailable, Node, NodeChanged, NodeState
from trainshed.testing.engine.clock import Clock, FaultyEventBus

SECOND = 10**9


class Times(Struct, frozen=True):
    """How long things take, in nanoseconds."""

    #: Time after which a silent node counts as gone.
    lease: int = 30 * SECOND
    #: Time after which a cut-off shim has killed its program, and its replica may be called lost; longer than
    #: `lease`.
    fence: int = 120 * SECOND
    #: Longest time from a launch to its process.
    start: int = SECOND // 2


class Place(Struct):
    """A node. `reachable`: the service can reach it. `since`: when that last changed."""

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
    """All nodes of a world. `fenced`: called with a node that did not answer until its fence has passed."""

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
        """Tell a new listener which nodes are gone or draining."""
        for place in self.places.values():
            if place.gone or place.draining:
                self._tell(place, "as found")

    def require(self, node: str) -> None:
        """Raise EngineUnavailable if nothing can be started there now."""
        place = self.places[node]
        if place.gone or not place.reachable:
            raise EngineUnavailable(f"node {node} does not answer; name another one, or wait")

    def drain(self, node: str, *, draining: bool) -> None:
        place = self.places[node]
        if place.draining != draining:
            place.draining = draining
            self._tell(place, "the engine's own maintenance")

    def silence(self, node: str) -> None:
        """Make a node silent: it is gone after its lease and fenced later, unless it is back by then."""
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
