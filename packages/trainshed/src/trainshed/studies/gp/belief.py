"""The model of a study's metrics: one Gaussian process per metric, fitted to the trials that `selection` has
chosen, and the scores that follow from it. Independent of the search for points."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from trainshed.core.study.spec import Noise, StudySpec
from trainshed.studies.gp.acquisition import FrontGain, LikelyScore, Score, UpperBound, directions, scalarize
from trainshed.studies.gp.process import HIGH_NOISE, LOW_NOISE, Data, Hyperparameters, Posterior, fit
from trainshed.studies.gp.selection import ModelTrials
from trainshed.studies.routines import Array, Positions
from trainshed.studies.space import Space

_MAX_FITTED_ROWS = 160
"""Maximum number of trials for fitting hyperparameters. More trials hardly improve them."""

_MAX_EVALUATIONS = 50
"""Maximum evaluations of the likelihood, from each start of the fit."""


@dataclass(frozen=True, slots=True)
class Belief:
    """The model of one metric."""

    #: Indexes of the trials with a value of every metric, among the model's trials, ascending.
    rows: Positions
    data: Data
    hyper: Hyperparameters
    known: Posterior

    def bound(self, pending: Array, coefficient: float) -> UpperBound:
        """Return the upper confidence bound, given pending trials. `pending`: embeddings, shape (k, q)."""
        if len(pending) == 0:
            return UpperBound(self.known, self.known, coefficient)
        return UpperBound(self.known, Posterior(self.data, self.hyper, pending), coefficient)


def fit_beliefs(spec: StudySpec, space: Space, shown: ModelTrials, points: Array) -> tuple[Belief, ...]:
    """Fit one model per metric, in the order of the spec, and return the models. Requires that
    `shown.is_enough` is true. `points`: the embeddings of the model's completed trials."""
    return tuple(_belief(spec, space, shown, points, at) for at in range(len(spec.metrics)))


def _belief(spec: StudySpec, space: Space, shown: ModelTrials, points: Array, at: int) -> Belief:
    values, succeeded = shown.values[:, at], shown.success_mask
    rows = np.flatnonzero(succeeded[shown.rows])
    every = np.zeros(len(values))
    every[succeeded] = warp(values[succeeded])
    labels = every[shown.rows][rows]
    data = Data(points[rows], labels, space.groups, space.width)
    priors = HIGH_NOISE if spec.noise is Noise.HIGH else LOW_NOISE
    hyper = fit(data.only(_representative(data.labels)), priors, _MAX_EVALUATIONS)
    return Belief(rows, data, hyper, Posterior(data, hyper))


def successes(space: Space, shown: ModelTrials, points: Array) -> Posterior | None:
    """Return a model of the success of trials. Its value is positive where success is more likely than
    failure. Return None if all trials succeeded.

    It is separate from the metrics. If failed trials counted as bad values, they would lower the metric's
    model near the border of the failing region, where the best points often are. An example is the largest
    batch size that fits in memory.
    """
    succeeded = shown.success_mask[shown.rows]
    if succeeded.all():
        return None
    data = Data(points, np.where(succeeded, 0.5, -0.5), space.groups, space.width)
    last = len(succeeded) - 1
    rows = np.unique(np.linspace(0, last, min(last + 1, _MAX_FITTED_ROWS)).astype(np.int64))
    return Posterior(data, fit(data.only(rows), LOW_NOISE, _MAX_EVALUATIONS))


def _representative(labels: Array) -> Positions:
    """Return the indexes of the trials for fitting hyperparameters: all trials, or the best ones and an even
    selection of the other ones."""
    if len(labels) <= _MAX_FITTED_ROWS:
        return np.arange(len(labels), dtype=np.int64)
    order = np.argsort(-labels, kind="stable")
    half = _MAX_FITTED_ROWS // 2
    spread = np.linspace(half, len(labels) - 1, _MAX_FITTED_ROWS - half).astype(np.int64)
    return np.sort(np.concatenate([order[:half], order[spread]])).astype(np.int64)


def bound_score(
    beliefs: Sequence[Belief],
    success: Posterior | None,
    pending: Array,
    coefficient: float,
    rng: np.random.Generator,
) -> Score:
    """Return the score for the search: the upper bound of one objective, or the gain of the Pareto front for
    several objectives. If trials failed, the score is weighted by the probability of success."""
    bounds = [aim.bound(pending, coefficient) for aim in beliefs]
    if len(beliefs) > 1:
        score: Score = _front_gain(beliefs, bounds, pending, rng)
        floor = 0.0
    else:
        score, floor = bounds[0], float(beliefs[0].data.labels.min()) - 0.5
    return score if success is None else LikelyScore(score, success, floor)


def _front_gain(
    aims: Sequence[Belief], bounds: Sequence[UpperBound], pending: Array, rng: np.random.Generator
) -> FrontGain:
    along = directions(len(aims), rng)
    labels = np.column_stack([aim.data.labels for aim in aims])
    reference = labels.min(axis=0) - 0.1
    if len(pending):
        expected = np.column_stack([aim.known.predict(pending)[0] for aim in aims])
        labels = np.vstack([labels, expected])
    reached = scalarize(labels, along, reference).max(axis=0)
    return FrontGain(tuple(bounds), along, reference, reached)


_LOG_OFFSET = 1.5
"""Stretching of the logarithm, as in the paper. 1 disables the stretching."""

_RANKED_SHARE = 0.2
"""The share of trials, starting with the worst one, whose values are replaced by ranks."""

_PENALTY_FACTOR = 1e8
"""A value is replaced by its rank if its distance from the best value is this many times the distance of the
median. Such a value is probably a penalty."""


def warp(values: Array) -> Array:
    """Return labels for values to maximize. Labels are monotone and within [-0.5, 0.5], or 0 if all values
    are equal."""
    ranked = _rank_tail(_rescale(values))
    best, worst = float(ranked.max()), float(ranked.min())
    if best == worst:
        return np.zeros(ranked.shape)
    share = (best - ranked) / (best - worst)
    return 0.5 - np.log1p(share * (_LOG_OFFSET - 1.0)) / np.log(_LOG_OFFSET)


def _rescale(values: Array) -> Array:
    """Return the values, scaled by one power of two if their squares would overflow or underflow."""
    peak = float(np.abs(values).max())
    return np.ldexp(values, -int(np.frexp(peak)[1])) if not 1e-100 < peak < 1e100 else values


def _rank_tail(values: Array) -> Array:
    """Return the values with those below the pivot replaced by quantiles of a half-normal distribution with
    the scale of the other values."""
    distinct = np.unique(values)
    pivot = _pivot(np.sort(values))
    better = distinct[distinct >= pivot]
    width = float(np.sqrt(np.mean((better - pivot) ** 2)))
    if width == 0.0:
        width = float(np.sqrt(np.mean((distinct - pivot) ** 2)))
    if width == 0.0:
        return np.zeros(values.shape)
    worse = len(distinct) - len(better)
    tail = NormalDist(pivot, width)
    ranked = [tail.inv_cdf(0.5 * (rank + 0.5) / (worse + 0.5)) for rank in range(worse)]
    warped = np.concatenate([ranked, better])
    return warped[np.searchsorted(distinct, values)]


def _pivot(ascending: Array) -> float:
    """Return the worst value that remains unchanged."""
    count = len(ascending)
    best, middle = float(ascending[-1]), float(ascending[count // 2])
    near = int(np.searchsorted(ascending, best - _PENALTY_FACTOR * (best - middle)))
    return float(ascending[max(near, math.ceil(_RANKED_SHARE * (count - 1)))])
