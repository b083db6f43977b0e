"""What a point is worth trying: upper confidence bound, and pure exploration beside pending trials (arXiv 2408.11527).

Scores are to be maximized. Points come embedded; gradients are by the embedding. Shapes as in `process`.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trainshed.studies.gp.process import Posterior
from trainshed.studies.routines import Array

_ELSEWHERE = 1e3
"""More than scores differ by."""


class Score(Protocol):
    """Pure."""

    def values(self, points: Array) -> Array:
        """Of many points, shape (m,)."""
        ...

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        """Of one point, and how it changes with the point, shape (q,)."""
        ...


@dataclass(frozen=True, slots=True)
class UpperBound:
    """Mean by what is known, plus `coefficient` standard deviations by what will be known when all pending are over."""

    known: Posterior
    expected: Posterior
    coefficient: float

    def values(self, points: Array) -> Array:
        mean, deviation = self.known.predict(points)
        if self.expected is not self.known:
            _, deviation = self.expected.predict(points)
        return mean + self.coefficient * deviation

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        mean, deviation, up, out = self.known.predict_with_gradients(point)
        if self.expected is not self.known:
            _, deviation, _, out = self.expected.predict_with_gradients(point)
        return mean + self.coefficient * deviation, up + self.coefficient * out


@dataclass(frozen=True, slots=True)
class Exploration:
    """Where least is known, among points that may yet be good: whose bound reaches `threshold`. A point that misses
    it pays `slope` times the gap."""

    known: Posterior
    expected: Posterior
    threshold: float
    coefficient: float
    slope: float = 10.0

    def values(self, points: Array) -> Array:
        mean, deviation = self.known.predict(points)
        _, expected = self.expected.predict(points)
        return expected + self.slope * np.minimum(
            mean + self.coefficient * deviation - self.threshold, 0.0
        )

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        mean, deviation, up, out = self.known.predict_with_gradients(point)
        _, expected, _, spread = self.expected.predict_with_gradients(point)
        gap = mean + self.coefficient * deviation - self.threshold
        if gap >= 0.0:
            return expected, spread
        return expected + self.slope * gap, spread + self.slope * (up + self.coefficient * out)


@dataclass(frozen=True, slots=True)
class Within:
    """A score for those points alone that have one category; others are worth less than any of them. `column`: of the
    embedding, where that category stands."""

    score: Score
    column: int

    def values(self, points: Array) -> Array:
        return self.score.values(points) - _ELSEWHERE * (points[:, self.column] == 0.0)

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        value, gradient = self.score.value_and_gradient(point)
        return value - _ELSEWHERE * float(point[self.column] == 0.0), gradient
