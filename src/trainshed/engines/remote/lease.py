"""For how long programs of an agent may live that does not hear of its service, and from when on the service
may be certain that they do not: one rule for both sides, without clocks or files of its own.

An agent counts from the moment at which it said the last word that the service has acknowledged; the service
from the moment at which it heard a word, which is later. So the agent's time is over before the service's is,
whatever became of the words in between.
"""

from typing import Final

LAST_GRACE: Final = 3.0
"""Seconds that programs have when the lease is over."""
_MARGIN: Final = 5.0
"""Seconds after its lease until an agent counts as dead: `LAST_GRACE`, and the time that its programs take to
die."""
_LONGEST_BEAT: Final = 10.0
_BEATS: Final = 8
"""Words within a short lease."""


def beat(lease: float) -> float:
    """Seconds between two words of an agent, each of which is acknowledged. One that is not heard for twice
    as long has no connection any more."""
    return min(lease / _BEATS, _LONGEST_BEAT)


def longest_silence(lease: float) -> float:
    """Seconds from the last word of an agent until it is certainly dead, with all that it started."""
    return lease + _MARGIN


class Lease:
    """An agent's. Moments are seconds of its monotonic clock. `seconds`: how long it is; `now`: it begins."""

    def __init__(self, seconds: float, now: float) -> None:
        self.seconds = seconds
        #: When it is over, unless it is renewed.
        self.until = now + seconds
        self._number = 0
        #: When each word was said that is not acknowledged yet, by its number.
        self._said: dict[int, float] = {}

    def say(self, now: float) -> int:
        """The number of a word that is about to be said."""
        self._number += 1
        self._said[self._number] = now
        return self._number

    def acknowledge(self, number: int) -> None:
        """The service has heard that word, and with it all before it. Nothing for a number of another
        connection."""
        said = self._said.get(number)
        if said is None:
            return
        self._said = {other: when for other, when in self._said.items() if other > number}
        self.until = max(self.until, said + self.seconds)

    def begin_anew(self, seconds: float, said: float) -> None:
        """On a new connection, whose first word was said then; what held before is over."""
        self.seconds = seconds
        self.until = said + seconds
        self._said.clear()

    def be_left_alone(self, seconds: float, now: float) -> None:
        """The service is about to end, and nothing begins elsewhere for so long."""
        self.until = max(self.until, now + seconds)
