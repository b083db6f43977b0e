"""Converts times of a node's clock to the service's clock (docs/adr/0165). Pure.

An agent sends the current time of its clock with each report. The service computes the difference from its
own clock, rounds it to ten seconds, and subtracts it from all times of the report. Because of the rounding, a
repeated report yields the same times, whatever the delay of its messages.
"""

from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from trainshed.core.lifecycle.replica_events import (
    ReplicaEvent,
    ReplicaExited,
    ReplicaLost,
    ReplicaNoted,
    ReplicaStarted,
)
from trainshed.core.units import Nanos

MAX_SKEW: Final = 10.0
"""Maximum difference in seconds between the clocks of a node and of the service that causes no warning. It
includes the delay of a message."""

_STEP: Final = 10 * 10**9
"""All corrections of times are multiples of this step, in nanoseconds. The step exceeds the delay of
messages, so that the times of a correct clock are not changed."""

E = TypeVar("E", bound=ReplicaEvent)


class Reading(msgspec.Struct, frozen=True):
    """The times of an agent's clock (`theirs`) and of the service's clock (`ours`) when the service received
    a message, in nanoseconds since the epoch. `theirs`: None = the agent's time is unknown."""

    theirs: Nanos | None
    ours: Nanos

    def ours_at(self, moment: Nanos) -> Nanos:
        """Convert a time of the agent's clock to the service's clock. The error is at most half a `_STEP`.
        The time 0 marks a moment that has not been reached yet, so it stays 0."""
        if not (moment and self.theirs):
            return moment
        skew = round((self.theirs - self.ours) / _STEP) * _STEP
        # Limit the result to the present, because the agent's clock may have been set back.
        return min(moment - skew, self.ours) if skew else moment

    def of(self, event: E) -> E:
        """Return a copy of an agent's event. Its times are converted to the service's clock."""
        match event:
            case ReplicaStarted() | ReplicaNoted():
                return replace(event, at=self.ours_at(event.at))
            case ReplicaExited(exit=record):
                started, ended = self.ours_at(record.started), self.ours_at(record.ended)
                return replace(event, exit=replace(record, started=started, ended=ended))
            case ReplicaLost():
                return event
            case _:
                raise TypeError(type(event))


def skew_message(seconds: float) -> str | None:
    """Return a warning about a node's clock, or None if the clock is accurate enough. `seconds`: how far the
    node's clock is ahead of the service's clock."""
    if abs(seconds) <= MAX_SKEW:
        return None
    return f"its clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the service's"
