"""Curves of jobs (facts/experiments#curves): series of points from the event files in a job's log directory.
Pure.

Curves are thinned for display. Points of tensorboards have the same form. All points are stored in files
(`store.points`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from trainshed.core.units import Nanos


class Point(NamedTuple):
    """One value of a series. A named tuple is fast to create, and one request may contain thousands of
    points."""

    step: int
    #: Time of the measurement, in nanoseconds since the epoch.
    at: Nanos
    #: A scalar, or a serialised tensor.
    value: float | bytes


def fold(values: Sequence[float], ends: Iterable[int]) -> list[int]:
    """Return ascending indexes of the first value, of the last value, and of the minimum and maximum of each
    section between them. NaN is ignored in a section with other values. `ends`: the ascending end indexes of
    the sections."""
    kept, begin = {0, len(values) - 1}, 1
    for end in ends:
        if stretch := list(values[begin:end]):
            # Remove NaN only if the first value is NaN. Otherwise `min` and `max` never return NaN.
            is_none = math.isnan(stretch[0])
            numbers = [v for v in stretch if not math.isnan(v)] or stretch if is_none else stretch
            kept |= {begin + stretch.index(extreme(numbers)) for extreme in (min, max)}
        begin = end
    return sorted(kept)


def average_sections(values: Sequence[float], most: int) -> list[tuple[int, float]]:
    """Divide the values into at most `most` sections of equal length. Return the index of the last value and
    the mean of each section."""
    count = len(values)
    stretches = min(count, most)
    ends = [count * number // (stretches or 1) for number in range(stretches + 1)]
    return [(end - 1, sum(values[begin:end]) / (end - begin)) for begin, end in pairwise(ends)]


def thin(values: Sequence[float], most: int) -> Sequence[int]:
    """Return ascending indexes of at most `most` values: those that `fold` selects from sections of equal
    length. If `most` is 1, return the last index."""
    count = len(values)
    if count <= most:
        return range(count)
    stretches = max(0, most - 2) // 2
    ends = [1 + (count - 2) * number // stretches for number in range(1, stretches + 1)]
    return fold(values, ends) if most > 1 else [count - 1]


MAX_SERIES: Final = 1000
"""Maximum number of series of a job. Values of further tags are ignored."""

_LATEST: Final = 2**63 - 1


class CurveSeries(Struct, frozen=True):
    """The curve of a job's values with one tag in one directory."""

    #: ID of the series in the file of its points. Each job has one such file for all of its series, with the
    #: job's uid as its name.
    uid: int
    #: The directory below the job's log directory. "" is the log directory itself.
    run: str
    tag: str
    #: Step, time (ns) and value of the last point that was read. The value is None if it is not a finite
    #: number.
    step: int
    at: Nanos
    value: float | None
    #: Number of points that were read, including duplicates.
    count: int


def point(step: int, at: float, value: float) -> Point:
    """Return a point. `at` is the time from the program, in seconds since the epoch."""
    nanos = at * 1e9
    return Point(step, int(nanos) if math.isfinite(nanos) and 0 <= nanos < _LATEST else 0, value)


def last_point(series: CurveSeries) -> Point:
    """Return the last point that was read from the event files for this series."""
    return Point(series.step, series.at, math.nan if series.value is None else series.value)


class CurveWriter(Protocol):
    """Copies the curves of one job to another place, such as a tensorboard. Used by one task at a time."""

    async def prepare(self) -> None:
        """Prepare the destination before the first points arrive."""
        ...

    async def write(self, directory: str, points: Mapping[str, Sequence[Point]]) -> None:
        """Add points, grouped by tag, to the series of a directory. Callers may write the same points again.
        Raise Unavailable if the points cannot be stored."""
        ...
