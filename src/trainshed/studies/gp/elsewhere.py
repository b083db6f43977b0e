"""The search for a second optimum, far from the first. A study that has come to an optimum would refine its
sixth digit with every second trial, and its model, sure of the surroundings, is sure of far places as well.

So some trials then look as far as possible from all that were tried. If one measures far more than the points
around it let expect, it is followed up, by a model of its surroundings alone. Knows the model's data, not the
study.
"""

import numpy as np

from trainshed.studies.gp.belief import Belief
from trainshed.studies.gp.process import Posterior
from trainshed.studies.routines import Array, Positions

ARRIVED = 2e-5
"""Gain, as a share of the range of what was seen, below which a further trial near the best only refines
it."""

SETTLED = 1e-6
"""Gain below which no trial refines it any more."""

REFINED = 4
"""Least number of trials that are near the best already."""

EXACT = 1e-5
"""Variance of the noise, as a share of the function's, up to which a study counts as free of it."""

BESIDE = 0.05
"""How near such a trial is, in units of the cube."""

SURROUNDINGS = 0.3
"""Half the edge of the box around a point that is followed up, in units of the cube."""

STEP = 0.1
"""Half the edge of the box around that point in which the next trial lies."""

_LOOKED_AT = 8
"""Most points, the best first, that are checked for a surprise."""

_SURPRISE = 0.25
"""By how much a surprise exceeds what the points around its box let expect, as a share of the range of what
was seen."""

TRIALS_PER_DIMENSION = 5
"""Least trials per parameter of a study that looks elsewhere; with as many in a box, the box is left."""


def surprise(belief: Belief) -> Array | None:
    """Return the best point, far from the best of all, that measured far more than those around its box let
    expect, and whose box has not enough trials yet, shape (q,); None if there is none."""
    points, labels = belief.data.points, belief.data.labels
    order = np.argsort(-labels, kind="stable")
    best = points[order[0]]
    looked_at = 0
    for row in order[1:]:
        point = points[row]
        if np.abs(point - best).max() <= SURROUNDINGS:
            continue
        inside = surroundings(points, point)
        others = np.setdiff1d(np.arange(len(points)), inside)
        looked_at += 1
        if len(inside) < TRIALS_PER_DIMENSION * belief.data.width:
            mean, _ = Posterior(belief.data.only(others), belief.hyper).predict(point[None, :])
            if labels[row] - mean[0] > _SURPRISE:
                return point
        if looked_at == _LOOKED_AT:
            break
    return None


def surroundings(points: Array, centre: Array) -> Positions:
    """Return the rows of the points in the box around `centre`."""
    return np.flatnonzero(np.abs(points - centre).max(axis=1) <= SURROUNDINGS)
