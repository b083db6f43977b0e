"""Converts times of a node's clock to the service's clock (docs/adr/0165). Pure.

An agent sends its current time with each report. The difference from the service's clock, rounded to ten
seconds, is subtracted from all times of the report. Repeated reports therefore yield the same times, whatever
the delay of the messages.
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
"""Maximum difference in seconds between a node's clock and the service's, including the delay of a
message."""

_STEP: Final = 10 * 10**9
"""Corrections of times are multiples of this step, in nanoseconds. The step exceeds the delay of messages, so
that times of a correct clock are not changed."""

E = TypeVar("E", bound=ReplicaEvent)


class Reading(msgspec.Struct, frozen=True):
    """The times of an agent's clock (`theirs`) and of the service's clock (`ours`) at the same moment, in
    nanoseconds since the epoch. `theirs`: None = unknown."""

    theirs: Nanos | None
    ours: Nanos

    def ours_at(self, moment: Nanos) -> Nanos:
        """Convert a time of the agent's clock to the service's clock, with an error of at most half a
        `_STEP`. The time 0 (not reached yet) stays 0."""
        if not (moment and self.theirs):
            return moment
        skew = round((self.theirs - self.ours) / _STEP) * _STEP
        # The result is never in the future, even if the agent's clock was set back.
        return min(moment - skew, self.ours) if skew else moment

    def of(self, event: E) -> E:
        """Return an event of the agent with its times converted to the service's clock."""
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
    """Return a warning about a node's clock that is ahead of the service's clock by that many seconds; None =
    the clock is accurate enough."""
    if abs(seconds) <= MAX_SKEW:
        return None
    return (
        f"its clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the service's"
    )
