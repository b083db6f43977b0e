"""The only clock of the service: everyone else is handed one of these functions
(spec/invariants#pure-decisions)."""

import secrets
import threading
import time

from trainshed.core.names import JobUid


def now() -> int:
    """Nanoseconds since the epoch."""
    return time.time_ns()


class JobUids:
    """Makes job uids: ascending with time, unique in this process, hard to guess.

    41 bits of milliseconds since the epoch and 22 random bits; within one millisecond the last one plus one.
    """

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self) -> JobUid:
        fresh = (time.time_ns() // 1_000_000) << 22 | secrets.randbits(22)
        with self._lock:
            self._last = max(fresh, self._last + 1)
            return JobUid(self._last)
