"""Measures how late the event loop is, and where it was while it stood still.

A request waits for as long as the loop is late. A busy machine makes it late as well, so the processor time
of the loop's own thread is reported beside it: that part was computed on the loop, and belongs elsewhere.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from typing import Final

from msgspec import Struct

log = logging.getLogger(__name__)

_PERIOD: Final = 0.05
"""Seconds between two looks at the clock; a standstill can seem shorter than it was by this much."""
LATE: Final = 0.25
"""Seconds of lateness from which on it is logged."""
_RECENT: Final = 30.0
"""Seconds after which the recent maximum moves on: `Lag.recent` covers between once and twice this time."""
_QUIET: Final = 10.0
"""Seconds between two such log lines, and between two stacks."""
_FRAMES: Final = 12
"""Innermost stack frames that are logged: the outer ones are always the same."""


class Lag(Struct, frozen=True):
    """How late an event loop was, in seconds."""

    #: The maximum of the last 30 to 60 seconds.
    recent: float = 0.0
    #: The maximum since the start.
    longest: float = 0.0
    #: The most that the loop's own thread computed during one such delay.
    computed: float = 0.0


class LagMeter:
    """Measures the loop that `start` is called on."""

    def __init__(self) -> None:
        self._lag = Lag()
        self._recent = self._before = 0.0
        self._turned = self._told = 0.0
        self._due = self._used = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._thread = 0
        self._over = threading.Event()

    def start(self) -> None:
        """Begin to measure, 20 times a second, and start a thread that logs where the loop is when it is
        late."""
        self._thread = threading.get_ident()
        self._turned = time.monotonic()
        self._begin()
        threading.Thread(target=self._look, name="loop-lag", daemon=True).start()

    def close(self) -> None:
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()

    def reading(self) -> Lag:
        """Returns what is known now; a standstill that has not ended is not in it."""
        return self._lag

    def _begin(self) -> None:
        self._used = time.thread_time()
        self._due = time.monotonic() + _PERIOD
        self._timer = asyncio.get_running_loop().call_later(_PERIOD, self._tick)

    def _tick(self) -> None:
        now = time.monotonic()
        late = max(0.0, now - self._due)
        computed = min(late, time.thread_time() - self._used)
        if now - self._turned > _RECENT:
            self._turned, self._before, self._recent = now, self._recent, 0.0
        self._recent = max(self._recent, late)
        known = self._lag
        self._lag = Lag(
            recent=max(self._recent, self._before),
            longest=max(known.longest, late),
            computed=max(known.computed, computed),
        )
        if late > LATE and now - self._told > _QUIET:
            self._told = now
            log.warning(
                "the event loop was late by %.0f ms, of which its own thread computed for %.0f ms; "
                "requests waited",
                late * 1e3,
                computed * 1e3,
            )
        self._begin()

    def _look(self) -> None:
        """Log where the loop is while it stands still. Runs in a thread: if the loop never turns again,
        nobody else can."""
        logged = 0.0
        while not self._over.wait(LATE):
            due, now = self._due, time.monotonic()
            if now - due <= LATE or now - logged <= _QUIET:
                continue
            logged = now
            frame = sys._current_frames().get(self._thread)  # pyright: ignore[reportPrivateUsage] - the documented way
            stack = "".join(traceback.format_stack(frame)[-_FRAMES:]) if frame else "nowhere\n"
            log.warning(
                "the event loop has been waiting for %.0f ms:\n%s", (now - due) * 1e3, stack
            )
