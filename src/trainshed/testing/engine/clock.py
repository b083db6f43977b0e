"""The clocks of a simulated world: nanoseconds that pass only when somebody moves them. Owns what is still to
happen."""

import heapq
from collections.abc import Callable

from trainshed.core.units import Nanos

Happening = Callable[[], None]


class Clock:
    """`now`: nanoseconds, never fewer than before. What is due at the same moment happens in the order in
    which it was put there. `wall`: what a clock on the wall shows, which may be set back, and forward
    again."""

    def __init__(self, now: Nanos = 0) -> None:
        self.now = now
        self._ahead_by = 0
        self._upcoming: list[tuple[int, int, Happening]] = []
        self._count = 0

    @property
    def wall(self) -> int:
        return self.now + self._ahead_by

    def set_wall(self, ahead_by: int) -> None:
        """It shows so many ns more than `now` from here on, fewer if that is negative."""
        self._ahead_by = ahead_by

    def at(self, moment: Nanos, happening: Happening) -> None:
        """Let `happening` be called at `moment`, at once if that has passed. Nothing is ever taken back:
        whoever is called looks whether it still applies."""
        self._count += 1
        heapq.heappush(self._upcoming, (max(moment, self.now), self._count, happening))

    def after(self, delay: int, happening: Happening) -> None:
        self.at(self.now + delay, happening)

    def next_at(self) -> int | None:
        """When the next happening is due; None: nothing is ahead."""
        return self._upcoming[0][0] if self._upcoming else None

    def advance(self, moment: Nanos) -> None:
        """Move on to `moment`; all that is due until then happens, each at its own time."""
        while self._upcoming and self._upcoming[0][0] <= moment:
            due, _, happening = heapq.heappop(self._upcoming)
            self.now = max(self.now, due)
            happening()
        self.now = max(self.now, moment)

    def run_due(self) -> None:
        """All that is due now happens."""
        self.advance(self.now)
