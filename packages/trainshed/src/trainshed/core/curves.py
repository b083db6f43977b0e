"""Curves of jobs (facts/experiments#curves): what a job logs below its log directory, as series of points,
which are thinned where they are shown. Pure.

Points of tensorboards are the same; all points are stored in files (`store.points`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from trainshed.core.units import Nanos


class Point(NamedTuple):
    """One value of a series; a tuple, since there are thousands in a request."""

    step: int
    #: When it was measured: nanoseconds since the epoch.
    at: Nanos
    #: A scalar, or a serialised tensor.
    value: float | bytes


def folded(values: Sequence[float], ends: Iterable[int]) -> list[int]:
    """Return the indexes of the first value, of the last one, and of the minimum and maximum of
    each stretch between them, ascending. NaN is skipped unless a stretch has no other value.
    `ends`: the ends of the stretches, ascending."""
    kept, begin = {0, len(values) - 1}, 1
    for end in ends:
        if stretch := list(values[begin:end]):
            # After a first value that is a number, `min` and `max` never choose NaN.
            is_none = math.isnan(stretch[0])
            numbers = [v for v in stretch if not math.isnan(v)] or stretch if is_none else stretch
            kept |= {begin + stretch.index(extreme(numbers)) for extreme in (min, max)}
        begin = end
    return sorted(kept)


def averaged(values: Sequence[float], most: int) -> list[tuple[int, float]]:
    """Return the place of the last value and the mean of each of `most` stretches of equal length, or of
    each value if there are no more."""
    count = len(values)
    stretches = min(count, most)
    ends = [count * number // (stretches or 1) for number in range(stretches + 1)]
    return [(end - 1, sum(values[begin:end]) / (end - begin)) for begin, end in pairwise(ends)]


def thinned(values: Sequence[float], most: int) -> Sequence[int]:
    """Return the indexes of at most `most` values, ascending: the values are `folded` to stretches
    of equal length. If `most` is 1, return the last index."""
    count = len(values)
    if count <= most:
        return range(count)
    stretches = max(0, most - 2) // 2
    ends = [1 + (count - 2) * number // stretches for number in range(1, stretches + 1)]
    return folded(values, ends) if most > 1 else [count - 1]


MAX_SERIES: Final = 1000
"""The most series of a job; what it logs under further tags is ignored."""

_LATEST: Final = 2**63 - 1


class CurveSeries(Struct, frozen=True):
    """The curve of a job's values under one tag in one directory."""

    #: The key of its points, in the file of the job's uid.
    uid: int
    #: The directory below the job's log directory, "" = that itself.
    run: str
    tag: str
    #: The point that was read last: its step, when it was measured (ns), and its value; None = no finite
    #: number.
    step: int
    at: Nanos
    value: float | None
    #: Points read, including duplicates.
    count: int


def point(step: int, at: float, value: float) -> Point:
    """Return a point; `at` is the time as a program wrote it, in seconds since the epoch."""
    nanos = at * 1e9
    return Point(step, int(nanos) if math.isfinite(nanos) and 0 <= nanos < _LATEST else 0, value)


def last_point(series: CurveSeries) -> Point:
    """Return the point of a series that was read last."""
    return Point(series.step, series.at, math.nan if series.value is None else series.value)


class CurveWriter(Protocol):
    """Takes the curves of one job elsewhere as well, as to a tensorboard. Used by one task at a time."""

    async def begin(self) -> None:
        """Prepare for them, before there are any."""
        ...

    async def write(self, directory: str, points: Mapping[str, Sequence[Point]]) -> None:
        """Add points by tag to those of a directory; to write them again does no harm. Raises
        Unavailable."""
        ...
