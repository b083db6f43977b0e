"""The lease says for how long the programs of an agent may live that does not hear from its service, and when
the service may be certain that they are dead. It is one rule for both sides, without clocks of its own. An
agent keeps the lease with which its attempt began, whatever later services are set to.

An agent counts from the moment at which it sent the last message that the service has acknowledged; the
service from the moment at which it received a message, which is later. So the agent's lease ends before the
service's, whatever became of the messages in between.
"""

from collections.abc import Callable
from typing import Final

SHORTEST_LEASE: Final = 5
"""Seconds."""
LAST_GRACE: Final = 3.0
"""Seconds that programs have when the lease is over."""
_MARGIN: Final = 5.0
"""Seconds after its lease until an agent counts as dead: `LAST_GRACE`, and the time that its programs take to
die."""
_LONGEST_BEAT: Final = 10.0
_BEATS: Final = 8
"""Words within a short lease."""
_UNANSWERED: Final = 4
"""Words without an answer after which an agent dials anew. They are counted, so that an agent that stood
still reads first what came meanwhile."""


def beat(lease: float) -> float:
    """Return the seconds between two signs of life of an agent, each of which is acknowledged. One that is
    silent for twice as long has lost its connection."""
    return min(lease / _BEATS, _LONGEST_BEAT)


def last_grace(until: float, now: float) -> float:
    """Return how many seconds the programs of a lease that ends at `until` still have. None are left for an
    agent that was stopped or suspended beyond `LAST_GRACE`."""
    return max(0.0, min(LAST_GRACE, until + LAST_GRACE - now))


def longest_silence(lease: float) -> float:
    """Return the seconds from the last message of an agent until it and all its programs are certainly
    dead."""
    return lease + _MARGIN


class Lease:
    """An agent's lease. Moments are seconds of its monotonic clock. `seconds`: its length. `now`: its
    beginning. `renewed`: called with `until` whenever that has changed, and at the beginning."""

    def __init__(
        self, seconds: float, now: float, renewed: Callable[[float], None] = lambda _: None
    ) -> None:
        self.seconds = seconds
        self._renewed = renewed
        self._set(now + seconds)
        self._number = 0
        #: When each message that is not acknowledged yet was sent, by its number.
        self._said: dict[int, float] = {}

    def say(self, now: float) -> int:
        """Return the number of a message that is about to be sent."""
        self._number += 1
        self._said[self._number] = now
        return self._number

    @property
    def is_unheard(self) -> bool:
        """Whether so many messages were not acknowledged that the service is out of reach, or hangs."""
        return len(self._said) >= _UNANSWERED

    def acknowledge(self, number: int) -> None:
        """Renew the lease, because the service has received that message and all before it. Does nothing for
        a number of another connection."""
        said_at = self._said.get(number)
        if said_at is None:
            return
        self._said = {other: when for other, when in self._said.items() if other > number}
        self._set(max(self.until, said_at + self.seconds))

    def begin_anew(self, said_at: float) -> None:
        """Begin a new lease on a new connection, whose first message was sent at `said_at`."""
        self._set(said_at + self.seconds)
        self._said.clear()

    def _set(self, until: float) -> None:
        #: When it ends, unless it is renewed.
        self.until = until
        self._renewed(until)
