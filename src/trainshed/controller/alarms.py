"""Holds the one pending wake-up of each job: its earliest deadline."""

import asyncio
from collections.abc import Callable

from trainshed.core.lifecycle.machine import Deadline
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos

LONGEST_DELAY = 24 * 3600.0
"""Seconds; timers of a later deadline are set again after this."""
_ROUNDING = 1e-6
"""Seconds by which an alarm is later, because the loop's clock is a float."""


class _Alarm:
    """A job's deadlines. All of them are distances from something that has happened, so that they are
    measured by the loop's clock, which nobody sets, from the moment at which this service learns of them
    (docs/adr/0165)."""

    __slots__ = ("deadline", "due", "handle")

    def __init__(
        self, due: dict[Nanos, float], deadline: Deadline, handle: asyncio.TimerHandle
    ) -> None:
        #: When each of them comes, in seconds of the loop's clock.
        self.due = due
        #: The earliest one, and its timer.
        self.deadline = deadline
        self.handle = handle


class Alarms:
    """The alarms of all jobs, at most one per job, on the running event loop. `now`: nanoseconds since the
    epoch. `ring`: called when a deadline has come."""

    def __init__(self, now: Callable[[], int], ring: Callable[[JobUid, Deadline], None]) -> None:
        self._now = now
        self._ring = ring
        self._pending: dict[JobUid, _Alarm] = {}

    def set(self, uid: JobUid, deadlines: tuple[Deadline, ...]) -> None:
        """Replace the job's alarm by its earliest deadline; no deadlines clear it."""
        pending = self._pending.pop(uid, None)
        known = pending.due if pending is not None else {}
        here, now = asyncio.get_running_loop().time(), self._now()
        due = {
            d.at: known.get(d.at, here + max(d.at - now, 0) / 1e9 + _ROUNDING) for d in deadlines
        }
        earliest = min(deadlines, key=lambda deadline: due[deadline.at], default=None)
        if pending is None or earliest != pending.deadline or pending.deadline.at not in known:
            if pending is not None:
                pending.handle.cancel()
            if earliest is not None:
                self._arm(uid, due, earliest)
        else:
            pending.due = due
            self._pending[uid] = pending

    def close(self) -> None:
        for alarm in self._pending.values():
            alarm.handle.cancel()
        self._pending.clear()

    def _arm(self, uid: JobUid, due: dict[Nanos, float], deadline: Deadline) -> None:
        loop = asyncio.get_running_loop()
        at = min(due[deadline.at], loop.time() + LONGEST_DELAY)
        handle = loop.call_at(at, self._check, uid)
        self._pending[uid] = _Alarm(due, deadline, handle)

    def _check(self, uid: JobUid) -> None:
        alarm = self._pending[uid]
        deadline = alarm.deadline
        if asyncio.get_running_loop().time() < alarm.due[deadline.at]:
            self._arm(uid, alarm.due, deadline)
            return
        # What of the job's deadlines is measured already stays so; one that comes again is measured anew.
        del alarm.due[deadline.at]
        self._ring(uid, deadline)
