"""The clock of a simulated world: nanoseconds that pass only when somebody moves them. Owns what is still to happen."""

import heapq
from collections.abc import Callable

Happening = Callable[[], None]


class Clock:
    """`now`: nanoseconds. What is due at the same moment happens in the order in which it was put there."""

    def __init__(self, now: int = 0) -> None:
        self.now = now
        self._ahead: list[tuple[int, int, Happening]] = []
        self._count = 0

    def at(self, moment: int, happening: Happening) -> None:
        """Let `happening` be called at `moment`, at once if that has passed. Nothing is ever taken back: whoever is
        called looks whether it still applies."""
        self._count += 1
        heapq.heappush(self._ahead, (max(moment, self.now), self._count, happening))

    def after(self, delay: int, happening: Happening) -> None:
        self.at(self.now + delay, happening)

    def next_at(self) -> int | None:
        """When the next happening is due; None: nothing is ahead."""
        return self._ahead[0][0] if self._ahead else None

    def advance(self, moment: int) -> None:
        """Move on to `moment`; all that is due until then happens, each at its own time."""
        while self._ahead and self._ahead[0][0] <= moment:
            due, _, happening = heapq.heappop(self._ahead)
            self.now = max(self.now, due)
            happening()
        self.now = max(self.now, moment)

    def run_due(self) -> None:
        """All that is due now happens."""
        self.advance(self.now)
