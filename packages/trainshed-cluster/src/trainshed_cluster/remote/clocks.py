"""Converts the moments that an agent reports from its node's clock to the service's (docs/adr/0165). Pure.

An agent says with each report what its clock shows at that moment. The difference to the service's clock,
in steps of ten seconds, is taken off all moments of the report. So what is reported twice stays the same,
however long either message took.
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

LARGEST_SKEW: Final = 10.0
"""Seconds by which a node's clock may differ from the service's; a message takes its time to come."""

_STEP: Final = 10 * 10**9
"""Nanoseconds. More than a message takes, so that a clock that is right is believed."""

E = TypeVar("E", bound=ReplicaEvent)


class Reading(msgspec.Struct, frozen=True):
    """An agent's clock and the service's at the same moment, in nanoseconds since the epoch. `theirs`: None =
    it is not known."""

    theirs: Nanos | None
    ours: Nanos

    def ours_at(self, moment: Nanos) -> Nanos:
        """Return what the service's clock showed when the agent's showed `moment`, to within half of `_STEP`;
        0 = it has not come."""
        if not (moment and self.theirs):
            return moment
        skew = round((self.theirs - self.ours) / _STEP) * _STEP
        # Not after now, if the agent's clock was set back since.
        return min(moment - skew, self.ours) if skew else moment

    def of(self, event: E) -> E:
        """Return an event of the agent with the service's moments."""
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


def told_skew(seconds: float) -> str | None:
    """Return what is wrong with the clock of a node that is so far ahead of the service's; None = nothing."""
    if abs(seconds) <= LARGEST_SKEW:
        return None
    return (
        f"its clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the service's"
    )
