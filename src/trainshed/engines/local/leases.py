"""How a shim that does not answer any more is noticed: one timer asks all of them for a sign of life.

What is counted are questions without an answer, not time that has passed: a service that was itself stopped
for a while, or a machine that slept, takes nobody's lease away.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from trainshed.engines.local.slot_handle import SlotHandle

_QUESTIONS = 3
"""How often a shim is asked within a lease."""


class Leases:
    """`length`: seconds that a shim may be silent. `slot_handles`: all there are. `over` is called with the
    slot handles whose leases are over, those that have been silent nearly as long (the former included), and
    all that are live."""

    def __init__(
        self,
        length: float,
        slot_handles: Callable[[], Iterable[SlotHandle]],
        over: Callable[[Sequence[SlotHandle], Sequence[SlotHandle], Sequence[SlotHandle]], None],
    ) -> None:
        self._pause = length / _QUESTIONS
        self._seats = slot_handles
        self._over = over
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """There are live slot handles. The timer runs as long as there are any."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._ask)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self) -> None:
        self._timer = None
        live = [slot_handle for slot_handle in self._seats() if slot_handle.is_live]
        if not live:
            return
        self.watch()
        silence = [(slot_handle, slot_handle.ask()) for slot_handle in live]
        late = [slot_handle for slot_handle, unanswered in silence if unanswered >= _QUESTIONS]
        if late:
            quiet = [
                slot_handle for slot_handle, unanswered in silence if unanswered >= _QUESTIONS - 1
            ]
            self._over(late, quiet, live)
