"""What a service counts about itself while it works: plain numbers, so that counting costs a microsecond.

`api.metrics` presents them. `LagMeter` measures how late the event loop is.
"""

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from typing import Final

from msgspec import Struct, field

Labels = tuple[str, ...]

LATENCIES: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds, in seconds, of how long a request takes."""
SPANS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0)
"""Bounds, in seconds, of how long a job waits, or takes to start."""


class Series(Struct):
    """A histogram's numbers for one set of labels."""

    #: Observations between each bound and the one before; the last count is of those above all bounds.
    counts: list[int]
    total: float = 0.0


class Histogram(Struct):
    """How long something took, in seconds."""

    #: Ascending.
    bounds: tuple[float, ...]
    series: dict[Labels, Series] = {}

    def observe(self, seconds: float, *labels: str) -> None:
        series = self.series.get(labels)
        if series is None:
            series = self.series[labels] = Series([0] * (len(self.bounds) + 1))
        series.counts[bisect_left(self.bounds, seconds)] += 1
        series.total += seconds


class Meters(Struct):
    """All that was counted since the service started. Used from its event loop."""

    #: Answers that are not streams, by transport (`rest`, `grpc`), method and code.
    requests: Histogram = field(default_factory=lambda: Histogram(LATENCIES))
    #: From asking for capacity to getting it, by API.
    waits: Histogram = field(default_factory=lambda: Histogram(SPANS))
    #: From the submit until all replicas were up for the first time, by API.
    starts: Histogram = field(default_factory=lambda: Histogram(SPANS))
    #: Jobs that are over, by API, state and rule of the failure table.
    ends: Counter[Labels] = field(default_factory=Counter[Labels])
    #: Whole jobs that began another attempt, by rule.
    retries: Counter[Labels] = field(default_factory=Counter[Labels])
    #: Replicas that were started again within their attempt, by rule.
    restarts: Counter[Labels] = field(default_factory=Counter[Labels])
    #: Lines in the logs of replicas that ended.
    lines: int = 0
    #: Jobs that the retention has deleted.
    deleted: int = 0
    #: Attempts to deliver a notification, by target and outcome.
    notifications: Counter[Labels] = field(default_factory=Counter[Labels])


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
    """Measures the loop that `start` is called on, 20 times a second.

    A request waits for as long as the loop is late. A busy machine makes it late as well, so the processor
    time of the loop's own thread is reported beside it: that part was computed on the loop, and belongs
    elsewhere.
    """

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
