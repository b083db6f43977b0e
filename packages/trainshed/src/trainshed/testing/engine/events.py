"""The event bus of the simulated world: events come late or twice, in order only per replica."""

import random
from collections.abc import Callable

from msgspec import Struct

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import (
    CapacityChanged,
    EngineEvent,
    NodeChanged,
    NodesChosen,
    ReplicaReport,
    StartWaits,
)
from trainshed.testing.engine.clock import Clock

Subject = tuple[JobUid, int, ReplicaId] | tuple[JobUid, int] | str


class Delays(Struct, frozen=True):
    """The faults of a bus. `longest`: most ns that an event takes. `twice`: probability that an event is sent
    twice."""

    longest: int = 0
    twice: float = 0.0


class FaultyEventBus:
    """Events under way when the listener changes are lost; the world tells the next listener all again."""

    def __init__(self, clock: Clock, delays: Delays | None = None, seed: int = 0) -> None:
        self.delays = delays or Delays()
        self._clock = clock
        self._random = random.Random(seed)
        self._listener: Callable[[EngineEvent], None] | None = None
        self._generation = 0
        self._last: dict[Subject, int] = {}

    def attach(self, listener: Callable[[EngineEvent], None]) -> None:
        self._generation += 1
        self._listener = listener
        self._last.clear()

    def detach(self) -> None:
        self._generation += 1
        self._listener = None

    def tell(self, event: EngineEvent) -> None:
        for _ in range(2 if self._random.random() < self.delays.twice else 1):
            self._send(event)

    def _send(self, event: EngineEvent) -> None:
        generation = self._generation
        delay = self._random.randint(0, self.delays.longest) if self.delays.longest else 0
        subject = _subject(event)
        arrives = max(self._clock.now + delay, self._last.get(subject, 0))
        self._last[subject] = arrives

        def arrive() -> None:
            if generation == self._generation and self._listener is not None:
                self._listener(event)

        self._clock.at(arrives, arrive)


def _subject(event: EngineEvent) -> Subject:
    if isinstance(event, NodeChanged):
        return event.node
    if isinstance(event, CapacityChanged):
        return ""
    if isinstance(event, StartWaits | NodesChosen):
        return (event.job_uid, event.attempt)
    seen = event.event if isinstance(event, ReplicaReport) else event
    return (event.job_uid, seen.attempt, seen.replica)
