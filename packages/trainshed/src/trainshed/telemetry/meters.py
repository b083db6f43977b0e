"""The service's own counters: plain numbers, so that counting takes a microsecond.

`api.metrics` exports them. `LagMeter` measures the delay of the event loop.
"""

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from typing import Final

from msgspec import Struct, field

Labels = tuple[str, ...]

LATENCIES: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Buckets of request durations, in seconds."""
SPANS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0)
"""Buckets of the waiting and starting times of jobs, in seconds."""


class Series(Struct):
    """A histogram's numbers for one set of labels."""

    #: Observations up to each bound and above the previous one. The last count is for values above all
    #: bounds.
    counts: list[int]
    total: float = 0.0


class Histogram(Struct):
    """A histogram of durations in seconds."""

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
    """All counters since the service started. For use on its event loop."""

    #: Answers other than streams, by transport (`rest`, `grpc`), method and code.
    requests: Histogram = field(default_factory=lambda: Histogram(LATENCIES))
    #: From the request for capacity to its allocation, by API.
    waits: Histogram = field(default_factory=lambda: Histogram(SPANS))
    #: From the submission to the first moment at which all replicas run, by API.
    starts: Histogram = field(default_factory=lambda: Histogram(SPANS))
    #: Finished jobs, by API, state and rule of the failure table.
    ends: Counter[Labels] = field(default_factory=Counter[Labels])
    #: Retries of whole jobs, by rule.
    retries: Counter[Labels] = field(default_factory=Counter[Labels])
    #: Restarts of replicas within their attempt, by rule.
    restarts: Counter[Labels] = field(default_factory=Counter[Labels])
    #: Lines in the logs of finished replicas.
    lines: int = 0
    #: Jobs deleted by the retention.
    deleted: int = 0
    #: Attempts to deliver a notification, by target and outcome.
    notifications: Counter[Labels] = field(default_factory=Counter[Labels])


_INTERVAL: Final = 0.05
"""Seconds between two measurements. A delay can seem shorter by this much."""
_WINDOW_SECONDS: Final = 30.0
"""`Lag.recent` covers between one and two of these windows."""


class Lag(Struct, frozen=True):
    """The delay of an event loop, in seconds."""

    #: The maximum of the last 30 to 60 seconds.
    recent: float = 0.0
    #: The maximum since the start.
    longest: float = 0.0
    #: The maximum CPU time of the loop's own thread during one such delay.
    computed: float = 0.0


class LagMeter:
    """Measures the delay of the loop that calls `start`, 20 times a second.

    Requests wait as long as the loop is delayed. A busy machine also delays it, so the CPU time of the loop's
    own thread is reported separately. That part is computation that belongs into another thread.
    """

    def __init__(self) -> None:
        self._lag = Lag()
        self._recent = self._before = self._turned = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        due, used = time.monotonic() + _INTERVAL, time.thread_time()
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL, self._tick, due, used)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def reading(self) -> Lag:
        """Return the current values, without a delay in progress."""
        return self._lag

    def _tick(self, due: float, used: float) -> None:
        now = time.monotonic()
        late = max(0.0, now - due)
        computed = min(late, time.thread_time() - used)
        if now - self._turned > _WINDOW_SECONDS:
            self._turned, self._before, self._recent = now, self._recent, 0.0
        self._recent = max(self._recent, late)
        known = self._lag
        self._lag = Lag(
            recent=max(self._recent, self._before),
            longest=max(known.longest, late),
            computed=max(known.computed, computed),
        )
        self.start()
