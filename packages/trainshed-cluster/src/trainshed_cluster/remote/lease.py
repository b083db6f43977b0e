"""The lease says for how long the programs of an agent may live that does not hear from its service, and when
the service may be certain that they are dead. It is one rule for both sides, without clocks of its own;
`Promises` keeps in a file what an earlier service has promised.

An agent counts from the moment at which it sent the last message that the service has acknowledged; the
service from the moment at which it received a message, which is later. So the agent's lease ends before the
service's, whatever became of the messages in between.
"""

import logging
from pathlib import Path
from typing import Final

import msgspec

from trainshed.replica.system import durable

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


def longest_silence(lease: float) -> float:
    """Return the seconds from the last message of an agent until it and all its programs are certainly
    dead."""
    return lease + _MARGIN


class Lease:
    """An agent's lease. Moments are seconds of its monotonic clock. `seconds`: its length. `now`: its
    beginning."""

    def __init__(self, seconds: float, now: float) -> None:
        self.seconds = seconds
        #: When it ends, unless it is renewed.
        self.until = now + seconds
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
        self.until = max(self.until, said_at + self.seconds)

    def begin_anew(self, seconds: float, said_at: float) -> None:
        """Begin a new lease on a new connection, whose first message was sent at `said`."""
        self.seconds = seconds
        self.until = said_at + seconds
        self._said.clear()

    def be_left_alone(self, seconds: float, now: float) -> None:
        """Extend the lease, because the service is about to end and starts no replacement elsewhere for so
        many seconds."""
        self.until = max(self.until, now + seconds)


log = logging.getLogger(__name__)

PROMISE: Final = "promise.json"
"""File in the engine's directory."""
_UNWRITTEN: Final = 300.0
"""Seconds that agents were promised by default when there was no such file."""


class _Promise(msgspec.Struct, frozen=True):
    #: Seconds that an agent may live without contact.
    seconds: float


class Promises:
    """The promises to agents. `lease`: what this service promises every agent that it hears. Its methods
    block."""

    def __init__(self, path: Path, lease: float) -> None:
        self._path = path
        self._lease = lease
        #: The longest lease that an agent may have been promised, in seconds.
        self.longest = lease

    def load(self, *, has_agents: bool) -> None:
        """Read the file. `has_agents`: there are agents of an earlier service. Raises OSError, ValueError
        (the file is damaged)."""
        try:
            seconds = msgspec.json.decode(self._path.read_bytes(), type=_Promise).seconds
        except FileNotFoundError:
            seconds = _UNWRITTEN if has_agents else 0.0
        except msgspec.MsgspecError as error:
            raise ValueError(f"{self._path} cannot be read ({error}); remove it") from error
        self.longest = max(seconds, self._lease)
        if seconds != self.longest:
            self._write()

    def lengthen(self, seconds: float) -> None:
        """Write down a longer promise, before agents are told. Raises OSError, in which case they must not be
        told."""
        if seconds > self.longest:
            self.longest = seconds
            self._write()

    def fulfil(self) -> None:
        """Note that no agent relies on an earlier promise any more. Raises OSError, in which case a later
        service waits too long."""
        if self.longest > self._lease:
            self.longest = self._lease
            self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(str(self._path), msgspec.json.encode(_Promise(self.longest)).decode())
