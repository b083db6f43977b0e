"""The trust region: a study begins near what it has seen and looks farther the more it has seen (arXiv 2408.11527).

A point is trusted if some observed or pending point is within the radius in every smooth dimension.
"""

from dataclasses import dataclass

import numpy as np

from trainshed.studies.routines import Array

_LEAST = 0.2
_MOST = 0.5
_TRIALS_PER_DIMENSION = 5.0


def trust_radius(trials: int, dimensions: int) -> float:
    """Half the edge of the box around each point, 1 = the whole cube; it grows with the number of trials."""
    share = trials / (_TRIALS_PER_DIMENSION * (dimensions + 1))
    radius = _LEAST + (_MOST - _LEAST) * share
    return radius if radius <= _MOST else 1.0


@dataclass(frozen=True, slots=True)
class TrustRegion:
    """`centres`: genotypes of the numeric nodes, shape (n, d)."""

    centres: Array
    radius: float

    @property
    def is_everywhere(self) -> bool:
        return self.radius >= 1.0 or len(self.centres) == 0 or self.centres.shape[1] == 0

    def excess(self, points: Array) -> Array:
        """By how much each point lies outside, 0 within; shape (m,)."""
        if self.is_everywhere:
            return np.zeros(len(points))
        away = np.full((len(points), len(self.centres)), 0.0)
        for column in range(points.shape[1]):
            np.maximum(away, np.abs(points[:, column, None] - self.centres[:, column]), out=away)
        return np.maximum(away.min(axis=1) - self.radius, 0.0)

    def box(self, point: Array) -> tuple[Array, Array]:
        """The trusted box that `point` is deepest in, within the cube."""
        if self.is_everywhere:
            return np.zeros(point.shape), np.ones(point.shape)
        nearest = self.centres[int(np.abs(self.centres - point).max(axis=1).argmin())]
        return np.maximum(nearest - self.radius, 0.0), np.minimum(nearest + self.radius, 1.0)
