"""What a service counts about itself while it works: plain numbers, so that counting costs a microsecond.

`api.metrics` presents them.
"""

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
