"""Holds the one pending wake-up of each job: its earliest deadline."""

import asyncio
from collections.abc import Callable

from trainshed.core.lifecycle.machine import Deadline
from trainshed.core.names import JobUid

LONGEST_DELAY = 24 * 3600.0
"""Seconds; a later deadline is checked again after this, so that a changed clock is noticed."""


class Alarms:
    """The alarms of all jobs, at most one per job, on the running event loop. `ring`: called when a deadline
    has come."""

    def __init__(self, now: Callable[[], int], ring: Callable[[JobUid, Deadline], None]) -> None:
        self._now = now
        self._ring = ring
        self._pending: dict[JobUid, tuple[Deadline, asyncio.TimerHandle]] = {}

    def set(self, uid: JobUid, deadlines: tuple[Deadline, ...]) -> None:
        """Replace the job's alarm by its earliest deadline; no deadlines clear it."""
        earliest = min(deadlines, key=lambda deadline: deadline.at, default=None)
        pending = self._pending.get(uid)
        if pending is not None:
            if pending[0] == earliest:
                return
            pending[1].cancel()
            del self._pending[uid]
        if earliest is not None:
            self._arm(uid, earliest)

    def close(self) -> None:
        for _, handle in self._pending.values():
            handle.cancel()
        self._pending.clear()

    def _arm(self, uid: JobUid, deadline: Deadline) -> None:
        delay = min(max(deadline.at - self._now(), 0) / 1e9, LONGEST_DELAY)
        handle = asyncio.get_running_loop().call_later(delay, self._check, uid, deadline)
        self._pending[uid] = (deadline, handle)

    def _check(self, uid: JobUid, deadline: Deadline) -> None:
        del self._pending[uid]
        if self._now() < deadline.at:
            self._arm(uid, deadline)
        else:
            self._ring(uid, deadline)
