"""The only clock of the service. All other modules receive its functions as arguments
(spec/invariants#pure-decisions)."""

import os
import threading
import time
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    # Every command needs the clock, but few commands need the records, which are slow to import.
    from trainshed.core.names import JobUid

_RANDOM_BITS: Final = 22


def now() -> int:
    """Return the current time in nanoseconds since the epoch."""
    return time.time_ns()


class JobUids:
    """Creates UIDs of jobs: ascending with time, unique in this process, hard to guess.

    A UID consists of 41 bits of milliseconds since the epoch and 22 random bits. If the result is not larger
    than the last UID, the new UID is the last UID plus one.
    """

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self) -> "JobUid":
        with self._lock:
            bits = int.from_bytes(os.urandom(4)) >> (32 - _RANDOM_BITS)
            fresh = (time.time_ns() // 1_000_000) << _RANDOM_BITS | bits
            self._last = max(fresh, self._last + 1)
            return cast("JobUid", self._last)
