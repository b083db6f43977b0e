"""Keeps in a file for how long agents may live that this service has not heard since its start: the lease
that an earlier service promised them."""

import logging
from pathlib import Path
from typing import Final

import msgspec

from trainshed.replica.system import durable

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
