"""Scores points by their expected benefit as next trial. Scores are maximized.

The base is the upper confidence bound (arXiv 2408.11527). Several objectives use hypervolume scalarization
(Zhang and Golovin 2020, arXiv 2006.04655): for a random direction, a point's score is its worst objective,
scaled by the direction. The gain over the best observed score, averaged over directions, approximates the
gain in volume that the Pareto front dominates.

If trials failed, scores are weighted by the probability of success. A trust region limits the search to the
surroundings of observed and pending points. A point is in the region if its distance from one of these points
is at most the radius in every numeric dimension. The radius grows with the number of trials.

Points are embedded, and gradients refer to the embedding. Shapes are as in `process`.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trainshed.studies.gp.process import Posterior
from trainshed.studies.routines import Array

_MIN_SCORE = 1e-9
"""Minimum score before it is multiplied by the probability of success."""

_SAFE_PROBABILITY = 0.6
"""Probability of success above which a score is not reduced. Near the border of a failing region, this value
lets each trial halve the part whose success is unknown. A value closer to 1 would keep the search away from
the border."""

_SUCCESS_VARIANCE = 0.0025
"""Variance of success at an observed point, in units of `belief.successes`."""


class Score(Protocol):
    """A score of points. Pure."""

    def values(self, points: Array) -> Array:
        """Return the scores of points, shape (m,)."""
        ...

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        """Return the score of one point and its gradient with respect to the point, shape (q,)."""
        ...


@dataclass(frozen=True, slots=True)
class UpperBound:
    """The mean, plus `coefficient` standard deviations. The mean depends on completed trials only. The
    deviation treats pending trials as completed."""

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


_MIN_RADIUS = 0.2
_MAX_RADIUS = 0.5
_TRIALS_PER_DIMENSION = 5.0


def trust_radius(trials: int, dimensions: int) -> float:
    """Return the trust radius: half the edge length of the box around each observed or pending point. The
    radius grows with the number of trials. 1 = the box covers the whole cube."""
    share = trials / (_TRIALS_PER_DIMENSION * (dimensions + 1))
    radius = _MIN_RADIUS + (_MAX_RADIUS - _MIN_RADIUS) * share
    return radius if radius <= _MAX_RADIUS else 1.0


@dataclass(frozen=True, slots=True)
class TrustRegion:
    """The region near observed and pending points: a box around each of these points. `centres`: the codes of
    the points' numeric parameters, shape (n, d)."""

    centres: Array
    radius: float

    @property
    def is_everywhere(self) -> bool:
        return self.radius >= 1.0 or len(self.centres) == 0 or self.centres.shape[1] == 0

    def excess(self, points: Array) -> Array:
        """Return each point's distance from the region, shape (m,). The distance is 0 inside the region."""
        if self.is_everywhere:
            return np.zeros(len(points))
        away = np.full((len(points), len(self.centres)), 0.0)
        for column in range(points.shape[1]):
            np.maximum(away, np.abs(points[:, column, None] - self.centres[:, column]), out=away)
        return np.maximum(away.min(axis=1) - self.radius, 0.0)

    def box(self, point: Array) -> tuple[Array, Array]:
        """Return the lowest and the highest corner of the region's box whose centre is nearest to `point`.
        The box is clipped to the cube."""
        if self.is_everywhere:
            return np.zeros(point.shape), np.ones(point.shape)
        nearest = self.centres[int(np.abs(self.centres - point).max(axis=1).argmin())]
        return np.maximum(nearest - self.radius, 0.0), np.minimum(nearest + self.radius, 1.0)


_DIRECTIONS = 96
_GRADIENT_STEP = 1e-5
"""Step size for numeric gradients, in units of the cube."""

_PLAIN_WEIGHT = 1e-3
"""Weight of the plain scalarized bound in the score. It makes scores differ even if no point improves the
front."""


def directions(objectives: int, rng: np.random.Generator) -> Array:
    """Return random directions with positive components, shape (directions, objectives)."""
    drawn = np.abs(rng.normal(size=(_DIRECTIONS, objectives)))
    return np.maximum(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), 1e-3)


@dataclass(frozen=True, slots=True)
class FrontGain:
    """Scores a point by its gain: the amount by which its upper bounds exceed the best labels so far,
    averaged over `directions`. `reference`: the reference point of the hypervolume, in labels, shape (k,).
    `reached`: the best scalarized label so far, for each direction."""

    bounds: tuple[UpperBound, ...]
    directions: Array
    reference: Array
    reached: Array

    def values(self, points: Array) -> Array:
        labels = np.column_stack([bound.values(points) for bound in self.bounds])
        along = scalarize(labels, self.directions, self.reference)
        gain = np.maximum(along - self.reached, 0.0).mean(axis=1)
        return gain + _PLAIN_WEIGHT * along.mean(axis=1)

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        return by_differences(self, point)


def scalarize(labels: Array, along: Array, reference: Array) -> Array:
    """Return the scalarized labels: for points (m, k) and directions (d, k), shape (m, d)."""
    scaled = np.maximum((labels - reference)[:, None, :] / along, 0.0).min(axis=2)
    return scaled ** labels.shape[1]


@dataclass(frozen=True, slots=True)
class LikelyScore:
    """The amount by which `score` exceeds `floor`, weighted by the probability that a trial succeeds. The
    weight is 1 above `_SAFE_PROBABILITY`, and falls to 0 below it. `floor`: the score of a point without any
    benefit."""

    score: Score
    success: Posterior
    floor: float

    def values(self, points: Array) -> Array:
        mean, deviation = self.success.predict(points)
        sure = mean / np.sqrt(deviation**2 + _SUCCESS_VARIANCE)
        share = np.array([_probability(value) for value in sure]) / _SAFE_PROBABILITY
        weights = np.minimum(share, 1.0) ** 2
        return np.maximum(self.score.values(points) - self.floor, _MIN_SCORE) * weights

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        value, gradient = self.score.value_and_gradient(point)
        value -= self.floor
        if value < _MIN_SCORE:
            value, gradient = _MIN_SCORE, np.zeros(point.shape)
        weight, rise = self._weight_and_gradient(point)
        return value * weight, gradient * weight + value * rise

    def _weight_and_gradient(self, point: Array) -> tuple[float, Array]:
        mean, deviation, up, out = self.success.predict_with_gradients(point)
        width = math.sqrt(deviation**2 + _SUCCESS_VARIANCE)
        sure = mean / width
        share = _probability(sure) / _SAFE_PROBABILITY
        if share >= 1.0:
            return 1.0, np.zeros(point.shape)
        density = math.exp(-0.5 * sure * sure) / math.sqrt(2.0 * math.pi)
        rise = (up - sure * (deviation / width) * out) / width
        return share**2, 2.0 * share * density / _SAFE_PROBABILITY * rise


def _probability(sure: float) -> float:
    """Return the cumulative normal distribution at `sure` standard deviations."""
    return 0.5 * math.erfc(-sure / math.sqrt(2.0))


def by_differences(score: Score, point: Array) -> tuple[float, Array]:
    """Return value and gradient of a score without an analytic gradient, from one batch of nearby points."""
    steps = np.eye(len(point)) * _GRADIENT_STEP
    values = score.values(np.vstack([point, point + steps, point - steps]))
    ahead, behind = values[1 : len(point) + 1], values[len(point) + 1 :]
    return float(values[0]), (ahead - behind) / (2.0 * _GRADIENT_STEP)
