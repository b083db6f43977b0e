"""Finds the point with the best score: random points over the mixed space, of which the best are
refined by gradients and single steps. Pure: all randomness comes from the given generator."""

from dataclasses import dataclass

import numpy as np

from trainshed.studies.gp.acquisition import Score, TrustRegion
from trainshed.studies.routines import Array, minimize_bounded
from trainshed.studies.space import Node, Space

_OUTSIDE = -1e6
"""Far below every score: points outside of the trust region are compared by how far outside they are."""

_STEPPED = 64
"""Most categories that a single step tries; the crowd sees all."""

_APART = 0.2
"""Points to refine differ by more than this in some node, or they would come to the same place."""

_RANDOM_POINTS = 512
"""Points beside the seeds that are rated, and points anywhere."""
_CLIMBS = 8
"""How many of the best are then refined."""
_EVALUATIONS = 40
"""Of the score, for each of these."""


@dataclass(frozen=True, slots=True)
class Found:
    """Points, best first: snapped codes, shape (m, p), and their scores."""

    codes: Array
    scores: Array


def rated(space: Space, score: Score, codes: Array) -> Found:
    """Return all of the given points, best first; for a space that is small enough to rate every one."""
    scores = score.values(space.embed(codes))
    order = np.argsort(-scores, kind="stable")
    return Found(codes[order], scores[order])


@dataclass(frozen=True, slots=True)
class Search:
    """The search for the maximum of one score."""

    space: Space
    score: Score
    trust: TrustRegion

    def maximize(self, seeds: Array, rng: np.random.Generator) -> Found:
        """Return points, best first. `seeds`: genotypes near which good points may be, best first (shape
        (s, p), s may be 0)."""
        crowd = self._crowd(seeds, rng)
        scores = self._rate(crowd)
        order = np.argsort(-scores, kind="stable")
        crowd, scores = crowd[order], scores[order]
        climbed = [self._climb(crowd[at], float(scores[at])) for at in _apart(crowd, _CLIMBS)]
        crowd = np.vstack([*[point for point, _ in climbed], crowd])
        scores = np.concatenate([[value for _, value in climbed], scores])
        order = np.argsort(-scores, kind="stable")
        return Found(self.space.snap(crowd[order]), scores[order])

    def _rate(self, genotypes: Array) -> Array:
        points = self.space.embed(self.space.snap(genotypes))
        excess = self.trust.excess(points[:, self.space.is_number])
        return np.where(excess > 0.0, _OUTSIDE - excess, self.score.values(points))

    def _crowd(self, seeds: Array, rng: np.random.Generator) -> Array:
        """Return random points, the seeds, and points beside the seeds at several distances."""
        space, size = self.space, _RANDOM_POINTS
        anywhere = space.place(rng.random((size, space.width)))
        if len(seeds) == 0:
            return anywhere
        drawn = rng.geometric(min(1.0, 3.0 / len(seeds)), size=size) - 1
        parents = seeds[np.minimum(drawn, len(seeds) - 1)]
        reach = 10.0 ** rng.uniform(-3.0, -0.5, size=(size, 1))
        moved = np.clip(parents + reach * rng.normal(size=parents.shape), 0.0, 1.0)
        children = np.where(rng.random(parents.shape) < 0.7, moved, parents)
        swapped = rng.random(parents.shape) < 0.75 / space.width
        listed = space.is_listed
        children[:, listed] = np.where(swapped, anywhere, parents)[:, listed]
        return np.vstack([seeds, children, anywhere])

    def _climb(self, genotype: Array, value: float) -> tuple[Array, float]:
        """Return the local maximum near a point: by gradients in smooth nodes, by single steps in others."""
        for _ in range(4):
            before = value
            genotype, value = self._follow(genotype, value)
            if self.space.is_smooth.all():
                break
            genotype, value = self._step(genotype, value)
            if value <= before + 1e-12:
                break
        return genotype, value

    def _follow(self, genotype: Array, value: float) -> tuple[Array, float]:
        space = self.space
        codes = space.snap(genotype[None, :])[0]
        free = np.flatnonzero(space.is_smooth & ~np.isnan(codes))
        if len(free) == 0 or value < _OUTSIDE / 2:
            return genotype, value
        point = space.embed(codes[None, :])[0]
        columns = np.searchsorted(space.groups, free)
        low, high = np.zeros(len(point)), np.ones(len(point))
        low[space.is_number], high[space.is_number] = self.trust.box(point[space.is_number])

        def loss(at: Array) -> tuple[float, Array]:
            point[columns] = at
            reached, uphill = self.score.value_and_gradient(point)
            return -reached, -uphill[columns]

        best, _ = minimize_bounded(
            loss, codes[free], low[columns], high[columns], evaluations=_EVALUATIONS
        )
        moved = genotype.copy()
        moved[free] = best
        reached = float(self._rate(moved[None, :])[0])
        return (moved, reached) if reached > value else (genotype, value)

    def _step(self, genotype: Array, value: float) -> tuple[Array, float]:
        """Return the best of all points that differ in one listed or whole-numbered node by one step or one
        category, if it is better than this one."""
        neighbours: list[Array] = []
        for index, node in enumerate(self.space.nodes):
            for code in _beside(node, float(genotype[index])):
                other = genotype.copy()
                other[index] = code
                neighbours.append(other)
        if not neighbours:
            return genotype, value
        scores = self._rate(np.array(neighbours))
        best = int(scores.argmax())
        return (
            (neighbours[best], float(scores[best])) if scores[best] > value else (genotype, value)
        )


def _apart(genotypes: Array, count: int) -> list[int]:
    """Return up to `count` rows, from the first on, that are not nearly the same."""
    chosen: list[int] = []
    for at in range(len(genotypes)):
        if all(np.abs(genotypes[at] - genotypes[other]).max() > _APART for other in chosen):
            chosen.append(at)
        if len(chosen) == count:
            break
    return chosen


def _beside(node: Node, code: float) -> list[float]:
    """Return codes to step to: other categories; listed and whole numbers 1, 2, 4… values away, both ways."""
    if node.size <= 1:
        return []
    if node.is_categorical:
        return [float(other) for other in range(min(node.size, _STEPPED)) if other != int(code)]
    here = node.choices.index(node.value(code))
    reach = [(1 << power) * sign for power in range(node.size.bit_length()) for sign in (-1, 1)]
    places = sorted({min(max(here + step, 0), node.size - 1) for step in reach} - {here})
    return [node.code(node.choices[place]) for place in places]
