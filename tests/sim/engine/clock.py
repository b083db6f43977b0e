"""The clocks of a simulated world, which only move on command, and the queue of future events."""

import heapq
import random
from collections.abc import Callable

from msgspec import Struct

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.units import Nanos
from trainshed.engines.port import (
    CapacityChanged,
    EngineEvent,
    NodeChanged,
    NodesChosen,
    ReplicaReport,
    StartWaits,
)

Happening = Callable[[], None]


class Clock:
    """Virtual time. `now`: nanoseconds, which never decrease. Events at the same time run in the order of
    their addition. `wall`: a wall clock, which may be set.
    """

    def __init__(self, now: Nanos = 0) -> None:
        self.now = now
        self._ahead_by = 0
        self._upcoming: list[tuple[int, int, Happening]] = []
        self._count = 0

    @property
    def wall(self) -> int:
        return self.now + self._ahead_by

    def set_wall(self, ahead_by: int) -> None:
        """Set the wall clock `ahead_by` ns ahead of `now`, or behind if negative."""
        self._ahead_by = ahead_by

    def at(self, moment: Nanos, happening: Happening) -> None:
        """Schedule `happening` for `moment`, or for now if that has passed. It cannot be cancelled: it must
        check whether it still applies.
        """
        self._count += 1
        heapq.heappush(self._upcoming, (max(moment, self.now), self._count, happening))

    def after(self, delay: int, happening: Happening) -> None:
        self.at(self.now + delay, happening)

    def next_at(self) -> int | None:
        """Return the time of the next event, or None."""
        return self._upcoming[0][0] if self._upcoming else None

    def advance(self, moment: Nanos) -> None:
        """Advance to `moment`, and run all events until then, each at its own time."""
        while self._upcoming and self._upcoming[0][0] <= moment:
            due, _, happening = heapq.heappop(self._upcoming)
            self.now = max(self.now, due)
            happening()
        self.now = max(self.now, moment)

    def run_due(self) -> None:
        """Run all events that are due now."""
        self.advance(self.now)


Subject = tuple[JobUid, int, ReplicaId] | tuple[JobUid, int] | str


class Delays(Struct, frozen=True):
    """Faults of an event bus.

    `longest` is the maximum delay of an event in ns, and `twice` the probability of a duplicate.
    """

    longest: int = 0
    twice: float = 0.0


class FaultyEventBus:
    """Delivers events with faults. Events in transit are lost when the listener changes. The world then
    repeats all events for the next listener.
    """

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
