"""The only clock of the service: everything else is given one of these functions
(spec/invariants#pure-decisions)."""

import os
import struct
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    # Every command needs the clock, but not every one needs the records, which take time to load.
    from trainshed.core.names import JobUid

_RANDOM_BITS: Final = 22
_AT_ONCE: Final = 256
"""Random words that are requested from the system at once."""


def now() -> int:
    """Return the nanoseconds since the epoch."""
    return time.time_ns()


class JobUids:
    """Makes job uids: ascending with time, unique in this process, hard to guess.

    A uid has 41 bits of milliseconds since the epoch and 22 random bits; if that does not ascend, it is the
    last uid plus one.
    """

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()
        self._random: Iterator[tuple[int]] = iter(())

    def __call__(self) -> "JobUid":
        with self._lock:
            fresh = (time.time_ns() // 1_000_000) << _RANDOM_BITS | self._bits()
            self._last = max(fresh, self._last + 1)
            return cast("JobUid", self._last)

    def _bits(self) -> int:
        # Many at once, because each system call hands the interpreter's lock to another thread and has to
        # wait for it.
        for (word,) in self._random:
            return word >> (32 - _RANDOM_BITS)
        self._random = struct.iter_unpack("=I", os.urandom(4 * _AT_ONCE))
        return self._bits()
