"""Scores how much a point is worth trying: upper confidence bound (arXiv 2408.11527).

With several objectives: hypervolume scalarization (Zhang and Golovin 2020, arXiv 2006.04655). For a random
direction the worst of the objectives counts, measured along the direction; what a point adds to the best
seen, averaged over directions, is what it adds to the volume that the front dominates. Where trials failed, a
score is weighed by the chance that one succeeds.

A trust region keeps the search near what the study has seen, and lets it go farther the more it has seen: a
point is trusted if some observed or pending point is within the radius in every numeric dimension.

Scores are maximized. Points are embedded; gradients are by the embedding. Shapes are as in `process`.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trainshed.studies.gp.process import Posterior
from trainshed.studies.routines import Array

_HARDLY = 1e-9
"""Least value of a score before it is weighed by the chance of success."""

_CHANCE = 0.6
"""Probability of success from which on a point's score is not reduced any more. At the border of a region in
which trials fail, each trial then halves what is unknown of it; with a value nearer to 1 the search would
stay away from the border."""

_DOUBT = 0.0025
"""Variance of success where a trial was seen, in units of `belief.successes`."""


class Score(Protocol):
    """How much points are worth trying. Pure."""

    def values(self, points: Array) -> Array:
        """Return the scores of many points, shape (m,)."""
        ...

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        """Return the score of one point, and its gradient by the point, shape (q,)."""
        ...


@dataclass(frozen=True, slots=True)
class UpperBound:
    """Mean by what is known, plus `coefficient` standard deviations by what will be known when all pending
    trials are over."""

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
    """Return half the edge of the box around each point, 1 = the whole cube; it grows with the trials."""
    share = trials / (_TRIALS_PER_DIMENSION * (dimensions + 1))
    radius = _MIN_RADIUS + (_MAX_RADIUS - _MIN_RADIUS) * share
    return radius if radius <= _MAX_RADIUS else 1.0


@dataclass(frozen=True, slots=True)
class TrustRegion:
    """The boxes around what was seen. `centres`: codes of the numeric nodes, shape (n, d)."""

    centres: Array
    radius: float

    @property
    def is_everywhere(self) -> bool:
        return self.radius >= 1.0 or len(self.centres) == 0 or self.centres.shape[1] == 0

    def excess(self, points: Array) -> Array:
        """Return by how much each point lies outside, 0 within; shape (m,)."""
        if self.is_everywhere:
            return np.zeros(len(points))
        away = np.full((len(points), len(self.centres)), 0.0)
        for column in range(points.shape[1]):
            np.maximum(away, np.abs(points[:, column, None] - self.centres[:, column]), out=away)
        return np.maximum(away.min(axis=1) - self.radius, 0.0)

    def box(self, point: Array) -> tuple[Array, Array]:
        """Return the trusted box that `point` is deepest in, within the cube."""
        if self.is_everywhere:
            return np.zeros(point.shape), np.ones(point.shape)
        nearest = self.centres[int(np.abs(self.centres - point).max(axis=1).argmin())]
        return np.maximum(nearest - self.radius, 0.0), np.minimum(nearest + self.radius, 1.0)


_DIRECTIONS = 96
_STEP = 1e-5
"""Step of the differences that approximate a gradient, in units of the cube."""

_ALL_GAINS_NOTHING = 1e-3
"""Weight of the plain scalarized bound, so that points still differ when none adds to the front."""


def directions(objectives: int, rng: np.random.Generator) -> Array:
    """Return random directions with positive parts, shape (directions, objectives)."""
    drawn = np.abs(rng.normal(size=(_DIRECTIONS, objectives)))
    return np.maximum(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), 1e-3)


@dataclass(frozen=True, slots=True)
class FrontGain:
    """How much a point's upper bounds add to the front. `reference`: labels that count as nothing, shape
    (k,). `reached`: per direction, the best so far."""

    bounds: tuple[UpperBound, ...]
    directions: Array
    reference: Array
    reached: Array

    def values(self, points: Array) -> Array:
        labels = np.column_stack([bound.values(points) for bound in self.bounds])
        along = scalarized(labels, self.directions, self.reference)
        gain = np.maximum(along - self.reached, 0.0).mean(axis=1)
        return gain + _ALL_GAINS_NOTHING * along.mean(axis=1)

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        return by_differences(self, point)


def scalarized(labels: Array, along: Array, reference: Array) -> Array:
    """Return the scalarized labels of each point (m, k) in each direction (d, k), shape (m, d)."""
    scaled = np.maximum((labels - reference)[:, None, :] / along, 0.0).min(axis=2)
    return scaled ** labels.shape[1]


@dataclass(frozen=True, slots=True)
class LikelyScore:
    """A score, weighed by the chance that a trial succeeds: by 1 where it is at least `_CHANCE`, falling to 0
    below that. `floor`: a score that is worth nothing."""

    score: Score
    success: Posterior
    floor: float

    def values(self, points: Array) -> Array:
        mean, deviation = self.success.predict(points)
        sure = mean / np.sqrt(deviation**2 + _DOUBT)
        share = np.array([_probability(value) for value in sure]) / _CHANCE
        weights = np.minimum(share, 1.0) ** 2
        return np.maximum(self.score.values(points) - self.floor, _HARDLY) * weights

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        value, gradient = self.score.value_and_gradient(point)
        value -= self.floor
        if value < _HARDLY:
            value, gradient = _HARDLY, np.zeros(point.shape)
        weight, rise = self._weight_and_gradient(point)
        return value * weight, gradient * weight + value * rise

    def _weight_and_gradient(self, point: Array) -> tuple[float, Array]:
        mean, deviation, up, out = self.success.predict_with_gradients(point)
        width = math.sqrt(deviation**2 + _DOUBT)
        sure = mean / width
        share = _probability(sure) / _CHANCE
        if share >= 1.0:
            return 1.0, np.zeros(point.shape)
        density = math.exp(-0.5 * sure * sure) / math.sqrt(2.0 * math.pi)
        rise = (up - sure * (deviation / width) * out) / width
        return share**2, 2.0 * share * density / _CHANCE * rise


def _probability(sure: float) -> float:
    """Return the normal distribution at so many deviations."""
    return 0.5 * math.erfc(-sure / math.sqrt(2.0))


def by_differences(score: Score, point: Array) -> tuple[float, Array]:
    """Return value and gradient of a score without a gradient of its own, from one batch of nearby points."""
    steps = np.eye(len(point)) * _STEP
    values = score.values(np.vstack([point, point + steps, point - steps]))
    ahead, behind = values[1 : len(point) + 1], values[len(point) + 1 :]
    return float(values[0]), (ahead - behind) / (2.0 * _STEP)
