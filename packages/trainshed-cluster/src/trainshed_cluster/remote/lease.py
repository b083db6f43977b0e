"""The lease limits how long programs of an agent live without contact to the service. The service considers
them dead after that time. Both sides use the same rule, each with its own clock. An agent keeps the lease of
its attempt when the setting changes.

An agent counts from the time at which it sent its last acknowledged message. The service counts from the time
at which it received the agent's last message, which is later. Therefore the lease always ends on the agent's
side first.
"""

from collections.abc import Callable
from typing import Final

MIN_LEASE: Final = 5
"""Minimum lease in seconds."""
LAST_GRACE: Final = 3.0
"""Grace period in seconds for programs after the lease has expired."""
_MARGIN: Final = 5.0
"""Seconds from the end of the lease until an agent counts as dead. This is longer than `LAST_GRACE`, to
include the time to kill its programs."""
_MAX_BEAT_INTERVAL: Final = 10.0
_BEATS_PER_LEASE: Final = 8
"""Number of heartbeats within a short lease."""
_MAX_UNACKNOWLEDGED: Final = 4
"""Number of unacknowledged heartbeats after which an agent reconnects. An agent that was suspended first
reads the acknowledgements that have arrived in the meantime."""


def beat_interval(lease: float) -> float:
    """Return the seconds between two heartbeats of an agent. An agent that is silent for twice that time has
    lost its connection."""
    return min(lease / _BEATS_PER_LEASE, _MAX_BEAT_INTERVAL)


def remaining_grace(until: float, now: float) -> float:
    """Return the remaining grace period in seconds for programs under a lease that ends at `until`. It is 0
    if the agent was suspended beyond `LAST_GRACE`."""
    return max(0.0, min(LAST_GRACE, until + LAST_GRACE - now))


def death_timeout(lease: float) -> float:
    """Return the seconds from an agent's last message until all its programs have certainly ended."""
    return lease + _MARGIN


class Lease:
    """An agent's lease. Times are seconds of its monotonic clock.

    Args:
        seconds: Length of the lease.
        now: Start of the lease.
        renewed: Called with the end of the lease at the start and after each change.
    """

    def __init__(
        self, seconds: float, now: float, renewed: Callable[[float], None] = lambda _: None
    ) -> None:
        self.seconds = seconds
        self._renewed = renewed
        self._set(now + seconds)
        self._number = 0
        #: Send time of each unacknowledged message, by number.
        self._sent_at: dict[int, float] = {}

    def next_number(self, now: float) -> int:
        """Return the number for the next message."""
        self._number += 1
        self._sent_at[self._number] = now
        return self._number

    @property
    def is_unacknowledged(self) -> bool:
        """Whether the service is unreachable or hangs, according to the number of unacknowledged messages."""
        return len(self._sent_at) >= _MAX_UNACKNOWLEDGED

    def acknowledge(self, number: int) -> None:
        """Renew the lease, because the service has received that message and all earlier ones. Ignores
        numbers of other connections."""
        said_at = self._sent_at.get(number)
        if said_at is None:
            return
        self._sent_at = {other: when for other, when in self._sent_at.items() if other > number}
        self._set(max(self.until, said_at + self.seconds))

    def restart(self, said_at: float) -> None:
        """Start a new lease on a new connection, whose first message was sent at the time `said_at`."""
        self._set(said_at + self.seconds)
        self._sent_at.clear()

    def _set(self, until: float) -> None:
        #: End of the lease unless it is renewed.
        self.until = until
        self._renewed(until)
