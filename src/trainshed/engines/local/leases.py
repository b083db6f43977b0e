"""How a shim that does not answer any more is noticed: one timer asks all of them for a sign of life.

What is counted are questions without an answer, not time that has passed: a service that was itself stopped
for a while, or a machine that slept, takes nobody's lease away.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from trainshed.engines.local.seat import Seat

_QUESTIONS = 3
"""How often a shim is asked within a lease."""


class Leases:
    """`length`: seconds that a shim may be silent. `seats`: all there are. `over` is called with the seats
    whose leases are over, those that have been silent nearly as long (the former included), and all that are
    live."""

    def __init__(
        self,
        length: float,
        seats: Callable[[], Iterable[Seat]],
        over: Callable[[Sequence[Seat], Sequence[Seat], Sequence[Seat]], None],
    ) -> None:
        self._pause = length / _QUESTIONS
        self._seats = seats
        self._over = over
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """There are live seats. The timer runs as long as there are any."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._ask)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self) -> None:
        self._timer = None
        live = [seat for seat in self._seats() if seat.is_live]
        if not live:
            return
        self.watch()
        silence = [(seat, seat.ask()) for seat in live]
        late = [seat for seat, unanswered in silence if unanswered >= _QUESTIONS]
        if late:
            quiet = [seat for seat, unanswered in silence if unanswered >= _QUESTIONS - 1]
            self._over(late, quiet, live)
