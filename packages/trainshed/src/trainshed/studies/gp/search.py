"""Finds the point with the best score. It scores random points of the mixed space, and refines the best ones
by gradients and single steps. Pure: all randomness comes from the generator in the arguments."""

from dataclasses import dataclass

import numpy as np

from trainshed.studies.gp.acquisition import Score, TrustRegion
from trainshed.studies.routines import Array, minimize_bounded
from trainshed.studies.space import Node, Space

_OUTSIDE_SCORE = -1e6
"""Offset far below every score, for points outside the trust region. These points are compared by their
distance from the region."""

_MAX_STEP_CATEGORIES = 64
"""Maximum number of categories of a node that a single step tries. The random points cover all categories."""

_MIN_REFINE_DISTANCE = 0.2
"""Minimum distance, in at least one node, between two points that are both refined. Closer points would reach
the same maximum."""

_RANDOM_POINTS = 512
"""Number of random points near the seeds, and number of random points anywhere."""
_REFINED_POINTS = 8
"""Number of best points to refine."""
_MAX_EVALUATIONS = 40
"""Maximum evaluations of the score for each refined point."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Points with their scores, best first. `codes`: the legal codes of the points (`studies.space`), shape
    (m, p)."""

    codes: Array
    scores: Array


def score_all(space: Space, score: Score, codes: Array) -> Candidates:
    """Return all points of a small space with their scores, best first."""
    scores = score.values(space.embed(codes))
    order = np.argsort(-scores, kind="stable")
    return Candidates(codes[order], scores[order])


@dataclass(frozen=True, slots=True)
class Search:
    """The search for the maximum of one score."""

    space: Space
    score: Score
    trust: TrustRegion

    def maximize(self, seeds: Array, rng: np.random.Generator) -> Candidates:
        """Return points, best first. `seeds`: genotypes near which good points may be, best first, shape (s,
        p). `s` may be 0."""
        crowd = self._sample(seeds, rng)
        scores = self._rate(crowd)
        order = np.argsort(-scores, kind="stable")
        crowd, scores = crowd[order], scores[order]
        climbed = [self._refine(crowd[at], float(scores[at])) for at in _distinct(crowd, _REFINED_POINTS)]
        crowd = np.vstack([*[point for point, _ in climbed], crowd])
        scores = np.concatenate([[value for _, value in climbed], scores])
        order = np.argsort(-scores, kind="stable")
        return Candidates(self.space.snap(crowd[order]), scores[order])

    def _rate(self, genotypes: Array) -> Array:
        points = self.space.embed(self.space.snap(genotypes))
        excess = self.trust.excess(points[:, self.space.is_number])
        return np.where(excess > 0.0, _OUTSIDE_SCORE - excess, self.score.values(points))

    def _sample(self, seeds: Array, rng: np.random.Generator) -> Array:
        """Return random points, the seeds, and points near the seeds at several distances."""
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

    def _refine(self, genotype: Array, value: float) -> tuple[Array, float]:
        """Return the local maximum near a point, by gradients in smooth nodes and by single steps in other
        nodes."""
        for _ in range(4):
            before = value
            genotype, value = self._ascend(genotype, value)
            if self.space.is_smooth.all():
                break
            genotype, value = self._step(genotype, value)
            if value <= before + 1e-12:
                break
        return genotype, value

    def _ascend(self, genotype: Array, value: float) -> tuple[Array, float]:
        space = self.space
        codes = space.snap(genotype[None, :])[0]
        free = np.flatnonzero(space.is_smooth & ~np.isnan(codes))
        if len(free) == 0 or value < _OUTSIDE_SCORE / 2:
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
            loss, codes[free], low[columns], high[columns], evaluations=_MAX_EVALUATIONS
        )
        moved = genotype.copy()
        moved[free] = best
        reached = float(self._rate(moved[None, :])[0])
        return (moved, reached) if reached > value else (genotype, value)

    def _step(self, genotype: Array, value: float) -> tuple[Array, float]:
        """Return the best neighbour of `genotype` with its score, if the score exceeds `value`. Otherwise,
        return `genotype` and `value`. A neighbour differs in one listed or integer node (`_neighbours`)."""
        neighbours: list[Array] = []
        for index, node in enumerate(self.space.nodes):
            for code in _neighbours(node, float(genotype[index])):
                other = genotype.copy()
                other[index] = code
                neighbours.append(other)
        if not neighbours:
            return genotype, value
        scores = self._rate(np.array(neighbours))
        best = int(scores.argmax())
        return (neighbours[best], float(scores[best])) if scores[best] > value else (genotype, value)


def _distinct(genotypes: Array, count: int) -> list[int]:
    """Return up to `count` rows, in order, that differ from each other by at least the minimum distance."""
    chosen: list[int] = []
    for at in range(len(genotypes)):
        if all(np.abs(genotypes[at] - genotypes[other]).max() > _MIN_REFINE_DISTANCE for other in chosen):
            chosen.append(at)
        if len(chosen) == count:
            break
    return chosen


def _neighbours(node: Node, code: float) -> list[float]:
    """Return the codes of neighbouring values: other categories, or listed values and integers at distances
    1, 2, 4… in both directions."""
    if node.size <= 1:
        return []
    if node.is_categorical:
        return [float(other) for other in range(min(node.size, _MAX_STEP_CATEGORIES)) if other != int(code)]
    here = node.choices.index(node.value(code))
    reach = [(1 << power) * sign for power in range(node.size.bit_length()) for sign in (-1, 1)]
    places = sorted({min(max(here + step, 0), node.size - 1) for step in reach} - {here})
    return [node.code(node.choices[place]) for place in places]
