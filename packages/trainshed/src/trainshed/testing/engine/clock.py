"""The clocks of a simulated world, which move only when told to, and the queue of what is still to happen."""

import heapq
from collections.abc import Callable

from trainshed.core.units import Nanos

Happening = Callable[[], None]


class Clock:
    """Virtual time. `now`: nanoseconds, which never decrease. What is due at the same moment happens in the
    order in which it was added. `wall`: the time of a wall clock, which may be set back and forward."""

    def __init__(self, now: Nanos = 0) -> None:
        self.now = now
        self._ahead_by = 0
        self._upcoming: list[tuple[int, int, Happening]] = []
        self._count = 0

    @property
    def wall(self) -> int:
        return self.now + self._ahead_by

    def set_wall(self, ahead_by: int) -> None:
        """Set the wall clock `ahead_by` ns ahead of `now`, or behind if that is negative."""
        self._ahead_by = ahead_by

    def at(self, moment: Nanos, happening: Happening) -> None:
        """Have `happening` called at `moment`, or now if that has passed. It cannot be cancelled: it has to
        check itself whether it still applies."""
        self._count += 1
        heapq.heappush(self._upcoming, (max(moment, self.now), self._count, happening))

    def after(self, delay: int, happening: Happening) -> None:
        self.at(self.now + delay, happening)

    def next_at(self) -> int | None:
        """Return when the next happening is due; None: there is none."""
        return self._upcoming[0][0] if self._upcoming else None

    def advance(self, moment: Nanos) -> None:
        """Move on to `moment`, and let all that is due until then happen, each at its own time."""
        while self._upcoming and self._upcoming[0][0] <= moment:
            due, _, happening = heapq.heappop(self._upcoming)
            self.now = max(self.now, due)
            happening()
        self.now = max(self.now, moment)

    def run_due(self) -> None:
        """Let all that is due now happen."""
        self.advance(self.now)
