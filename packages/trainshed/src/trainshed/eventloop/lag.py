"""Measures how late the event loop is.

A request waits for as long as the loop is late. A busy machine makes it late as well, so the processor time
of the loop's own thread is reported beside it: that part was computed on the loop, and belongs elsewhere.
"""

import asyncio
import time
from typing import Final

from msgspec import Struct

_PERIOD: Final = 0.05
"""Seconds between two looks at the clock; a standstill can seem shorter than it was by this much."""
_RECENT: Final = 30.0
"""Seconds after which the recent maximum moves on: `Lag.recent` covers between once and twice this time."""


class Lag(Struct, frozen=True):
    """How late an event loop was, in seconds."""

    #: The maximum of the last 30 to 60 seconds.
    recent: float = 0.0
    #: The maximum since the start.
    longest: float = 0.0
    #: The most that the loop's own thread computed during one such delay.
    computed: float = 0.0


class LagMeter:
    """Measures the loop that `start` is called on, 20 times a second."""

    def __init__(self) -> None:
        self._lag = Lag()
        self._recent = self._before = self._turned = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        due, used = time.monotonic() + _PERIOD, time.thread_time()
        self._timer = asyncio.get_running_loop().call_later(_PERIOD, self._tick, due, used)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def reading(self) -> Lag:
        """Returns what is known now; a standstill that has not ended is not in it."""
        return self._lag

    def _tick(self, due: float, used: float) -> None:
        now = time.monotonic()
        late = max(0.0, now - due)
        computed = min(late, time.thread_time() - used)
        if now - self._turned > _RECENT:
            self._turned, self._before, self._recent = now, self._recent, 0.0
        self._recent = max(self._recent, late)
        known = self._lag
        self._lag = Lag(
            recent=max(self._recent, self._before),
            longest=max(known.longest, late),
            computed=max(known.computed, computed),
        )
        self.start()
