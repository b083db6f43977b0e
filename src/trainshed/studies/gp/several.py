"""Several objectives, and objectives under safety metrics: what a point is worth when one number does not say it.

Hypervolume scalarization (Zhang and Golovin 2020, arXiv 2006.04655): for a random direction the worst of the objectives
counts, measured along the direction; what a point adds to the best seen, averaged over directions, is what it adds to
the volume that the front dominates. Safety metrics weigh a score with the probability that the point is safe.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainshed.studies.gp.acquisition import Score, UpperBound
from trainshed.studies.gp.process import Posterior
from trainshed.studies.routines import Array, normal_probability

_DIRECTIONS = 96
_STEP = 1e-5
"""Of the differences that stand in for a gradient, in units of the cube."""

_ALL_GAINS_NOTHING = 1e-3
"""Weight of the plain scalarized bound, so that points can still be told apart when none adds to the front."""


def directions(objectives: int, rng: np.random.Generator) -> Array:
    """Random directions with positive parts, shape (directions, objectives)."""
    drawn = np.abs(rng.normal(size=(_DIRECTIONS, objectives)))
    return np.maximum(drawn / np.linalg.norm(drawn, axis=1, keepdims=True), 1e-3)


@dataclass(frozen=True, slots=True)
class FrontGain:
    """How much a point's upper bounds add to the front. `reference`: labels that count as nothing, shape (k,).
    `reached`: per direction, the best that is there already."""

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
    """The scalarized labels of each point (m, k) in each direction (d, k), shape (m, d)."""
    scaled = np.maximum((labels - reference)[:, None, :] / along, 0.0).min(axis=2)
    return scaled ** labels.shape[1]


@dataclass(frozen=True, slots=True)
class Safety:
    """The model of a safety metric. Its labels are positive where it is safe. `wanted`: share of safe trials."""

    model: Posterior
    wanted: float

    def weights(self, points: Array) -> Array:
        """1 where a point is safe with at least the probability that is wanted, falling to 0 below it."""
        mean, deviation = self.model.predict(points)
        share = normal_probability(mean / deviation) / self.wanted
        return np.minimum(share, 1.0) ** 2


@dataclass(frozen=True, slots=True)
class SafeScore:
    """A score, weighed by safety. `floor`: a score that is worth nothing."""

    score: Score
    safeties: Sequence[Safety]
    floor: float

    def values(self, points: Array) -> Array:
        weights = np.ones(len(points))
        for safety in self.safeties:
            weights *= safety.weights(points)
        return np.maximum(self.score.values(points) - self.floor, 1e-9) * weights

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        return by_differences(self, point)


def by_differences(score: Score, point: Array) -> tuple[float, Array]:
    """Value and gradient of a score that has none, from one batch of nearby points."""
    steps = np.eye(len(point)) * _STEP
    values = score.values(np.vstack([point, point + steps, point - steps]))
    ahead, behind = values[1 : len(point) + 1], values[len(point) + 1 :]
    return float(values[0]), (ahead - behind) / (2.0 * _STEP)
