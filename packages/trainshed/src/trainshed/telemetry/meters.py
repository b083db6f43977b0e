"""The service's own counters. They are plain numbers, so that counting takes only a microsecond.

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
"""Upper bounds of the histogram buckets for request durations, in seconds."""
SPANS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0)
"""Upper bounds of the histogram buckets for the waiting and starting times of jobs, in seconds."""


class Series(Struct):
    """The counts of a histogram for one set of labels."""

    #: One count per bound: the values up to this bound and above the previous one. The last count is for
    #: values above all bounds.
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
    """All counters since the start of the service. Must be used on the service's event loop."""

    #: Durations of requests, without streams, by transport (`rest`, `grpc`), method and code.
    requests: Histogram = field(default_factory=lambda: Histogram(LATENCIES))
    #: Times from the request for capacity to its allocation, by API.
    waits: Histogram = field(default_factory=lambda: Histogram(SPANS))
    #: Times from the submission of a job to the first moment at which all of its replicas run, by API.
    starts: Histogram = field(default_factory=lambda: Histogram(SPANS))
    #: Finished jobs, by API, state and rule of the failure table.
    ends: Counter[Labels] = field(default_factory=Counter[Labels])
    #: Retries of whole jobs, by rule of the failure table.
    retries: Counter[Labels] = field(default_factory=Counter[Labels])
    #: Restarts of replicas within their attempt, by rule of the failure table.
    restarts: Counter[Labels] = field(default_factory=Counter[Labels])
    #: Number of lines in the logs of finished replicas.
    lines: int = 0
    #: Number of jobs that the service has deleted after their retention period.
    deleted_jobs: int = 0
    #: Attempts to deliver a notification, by target and outcome.
    notifications: Counter[Labels] = field(default_factory=Counter[Labels])


_INTERVAL: Final = 0.05
"""Seconds between two measurements. A measured delay can be too short by up to this interval."""
_WINDOW_SECONDS: Final = 30.0
"""Length of a window in seconds. `Lag.recent` covers between one and two windows."""


class Lag(Struct, frozen=True):
    """The delays of an event loop, in seconds."""

    #: The maximum delay in the last 30 to 60 seconds.
    recent: float = 0.0
    #: The maximum delay since the start.
    longest: float = 0.0
    #: The maximum CPU time that the loop's own thread used during one delay.
    cpu_time: float = 0.0


class LagMeter:
    """Measures, 20 times a second, the delay of the event loop on which `start` is called.

    Requests wait as long as the loop is delayed. Other load on the machine can also delay the loop. Therefore
    the CPU time of the loop's own thread is measured separately. It shows computation that should run in
    another thread.
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
        """Return the measurements so far. They do not include a delay that has not ended yet."""
        return self._lag

    def _tick(self, due: float, used: float) -> None:
        now = time.monotonic()
        late = max(0.0, now - due)
        cpu_time = min(late, time.thread_time() - used)
        if now - self._turned > _WINDOW_SECONDS:
            self._turned, self._before, self._recent = now, self._recent, 0.0
        self._recent = max(self._recent, late)
        known = self._lag
        self._lag = Lag(
            recent=max(self._recent, self._before),
            longest=max(known.longest, late),
            cpu_time=max(known.cpu_time, cpu_time),
        )
        self.start()
