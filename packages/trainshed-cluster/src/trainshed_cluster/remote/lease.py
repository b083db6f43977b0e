"""The rules of leases. A lease limits how long an agent's programs continue to run without contact to the
service. After that time, the service considers the programs dead. The agent and the service use the same
rules, each with its own clock. If the setting changes, the agent keeps the lease with which its attempt
started.

An agent measures the lease from the time at which it sent its last acknowledged message. The service measures
from the time at which it received the agent's last message, which is later. Therefore the lease always ends
on the agent's side first.
"""

from collections.abc import Callable
from typing import Final

MIN_LEASE: Final = 5
"""Minimum of the setting `lease`, in seconds."""
LAST_GRACE: Final = 3.0
"""Grace period in seconds for programs after their agent had no contact with the service for a whole lease.
"""
_MARGIN: Final = 5.0
"""Seconds between the end of an agent's lease (its maximum time without contact) and the time at which an
agent counts as dead. It exceeds `LAST_GRACE`, because killing the programs also takes time."""
_MAX_BEAT_INTERVAL: Final = 10.0
_BEATS_PER_LEASE: Final = 8
"""Number of heartbeats within one lease (the agent's maximum time without contact), if the lease is short.
For long leases, `_MAX_BEAT_INTERVAL` applies."""
_MAX_UNACKNOWLEDGED: Final = 4
"""Number of unacknowledged heartbeats after which an agent connects again. An agent that was suspended first
reads the acknowledgements that have arrived in the meantime, so it does not reach this number."""


def beat_interval(lease: float) -> float:
    """Return the seconds between two heartbeats of an agent. If an agent sends nothing for twice this time,
    its connection counts as lost."""
    return min(lease / _BEATS_PER_LEASE, _MAX_BEAT_INTERVAL)


def remaining_grace(until: float, now: float) -> float:
    """Return the remaining grace period in seconds for programs under a lease that ends at `until`. It is 0
    if more than `LAST_GRACE` seconds have passed since then, because the agent was suspended."""
    return max(0.0, min(LAST_GRACE, until + LAST_GRACE - now))


def death_timeout(lease: float) -> float:
    """Return the seconds after an agent's last message at which all its programs have certainly ended."""
    return lease + _MARGIN


class Lease:
    """An agent's lease: the time for which its programs continue without contact to the service. Times are
    seconds of its monotonic clock.

    Args:
        seconds: Length of the lease.
        now: Start of the lease.
        renewed: Called with the end of the lease at the start and after each change.
    """

    def __init__(self, seconds: float, now: float, renewed: Callable[[float], None] = lambda _: None) -> None:
        self.seconds = seconds
        self._renewed = renewed
        self._set(now + seconds)
        self._number = 0
        #: Send time of each message that the service has not acknowledged yet, by the message's number.
        self._sent_at: dict[int, float] = {}

    def next_number(self, now: float) -> int:
        """Return the number of the next message, and record its send time."""
        self._number += 1
        self._sent_at[self._number] = now
        return self._number

    @property
    def is_unacknowledged(self) -> bool:
        """Whether so many messages are unacknowledged that the service must be unreachable or hang."""
        return len(self._sent_at) >= _MAX_UNACKNOWLEDGED

    def acknowledge(self, number: int) -> None:
        """Renew the lease: the service has received the message with that number and all earlier messages.
        Ignores numbers of earlier connections."""
        said_at = self._sent_at.get(number)
        if said_at is None:
            return
        self._sent_at = {other: when for other, when in self._sent_at.items() if other > number}
        self._set(max(self.until, said_at + self.seconds))

    def restart(self, said_at: float) -> None:
        """Start a new lease after the agent has connected again. `said_at`: the time at which it sent the
        first message of the new connection."""
        self._set(said_at + self.seconds)
        self._sent_at.clear()

    def _set(self, until: float) -> None:
        #: End of the agent's lease (its maximum time without contact), unless the lease is renewed.
        self.until = until
        self._renewed(until)
