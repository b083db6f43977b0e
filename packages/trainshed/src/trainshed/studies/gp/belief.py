"""What a study's trials say of its metrics: one Gaussian process per metric, fitted to the trials that
`selection` has chosen, and the scores that follow from them.

Knows the spec and the measured values, not how the search finds points.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from trainshed.core.study.progress import score as signed
from trainshed.core.study.spec import Metric, Noise, StudySpec
from trainshed.studies.gp.acquisition import (
    FrontGain,
    SafeScore,
    Safety,
    Score,
    UpperBound,
    directions,
    scalarized,
)
from trainshed.studies.gp.process import (
    HIGH_NOISE,
    LOW_NOISE,
    Data,
    Hyperparameters,
    Posterior,
    fit,
)
from trainshed.studies.gp.selection import objective_columns
from trainshed.studies.gp.success import Success, likeliest
from trainshed.studies.routines import Array, Mask, Positions
from trainshed.studies.space import Space

_FITTED = 160
"""Most rows that the hyperparameters are fitted to; more rows say little more about them."""

_EVALUATIONS = 50
"""Of the hyperparameters' likelihood, from each start of their fit."""

_DEFAULT_SAFE_FRACTION = 0.5
"""Share of safe trials that is aimed at where the spec names none."""

_LEAST_SAFE_FRACTION = 0.01
"""Least share, never 0: of two points that are equally good otherwise, the safer one is still preferred."""

_CHANCE = 0.6
"""Probability of success from which on a point's score is not reduced any more. At the border of a region in
which trials fail, each trial then halves what is unknown of it; with a value nearer to 1 the search would
stay away from the border."""


@dataclass(frozen=True, slots=True)
class Belief:
    """What is known of one metric."""

    metric: Metric
    #: The rows of its data among the trials that the model is shown, ascending.
    rows: Positions
    data: Data
    hyper: Hyperparameters
    known: Posterior

    def bound(self, pending: Array, coefficient: float) -> UpperBound:
        """Return the upper confidence bound beside pending trials. `pending`: embeddings, shape (k, q)."""
        if len(pending) == 0:
            return UpperBound(self.known, self.known, coefficient)
        return UpperBound(self.known, Posterior(self.data, self.hyper, pending), coefficient)


@dataclass(frozen=True, slots=True)
class Observed:
    """What the completed trials have measured, with the embeddings of those that the model is shown."""

    #: The values of all completed trials by metric, more is better, shape (n, metrics).
    values: Array
    #: The rows of the trials that the model is shown.
    rows: Positions
    #: Their embeddings.
    points: Array

    def succeeded(self, spec: StudySpec) -> Mask:
        """Return, for all completed trials, whether they have a value of every objective."""
        known: Mask = np.isfinite(self.values[:, objective_columns(spec)])
        return np.asarray(known.all(axis=1), dtype=np.bool_)


def believe(spec: StudySpec, space: Space, observed: Observed) -> tuple[Belief, ...]:
    """Return one belief per metric, in the spec's order. Needs enough trials (`Shown.is_enough`)."""
    return tuple(_belief(spec, space, observed, at) for at in range(len(spec.metrics)))


def _belief(spec: StudySpec, space: Space, observed: Observed, at: int) -> Belief:
    metric = spec.metrics[at]
    values = observed.values[:, at]
    if metric.safety is None:
        succeeded = observed.succeeded(spec)
        rows = np.flatnonzero(succeeded[observed.rows])
        every = np.zeros(len(values))
        every[succeeded] = warp(values[succeeded])
        labels = every[observed.rows][rows]
    else:
        rows = np.flatnonzero(np.isfinite(values[observed.rows]))
        labels = margins(values[observed.rows][rows], signed(metric, metric.safety))
    data = Data(observed.points[rows], labels, space.groups, space.width)
    priors = HIGH_NOISE if spec.noise is Noise.HIGH else LOW_NOISE
    hyper = fit(data.only(_representative(data.labels)), priors, _EVALUATIONS)
    return Belief(metric, rows, data, hyper, Posterior(data, hyper))


def successes(spec: StudySpec, space: Space, observed: Observed) -> tuple[Safety, ...]:
    """Return a model of where trials succeed, apart from what they measure; () if all of them did."""
    succeeded = observed.succeeded(spec)[observed.rows]
    if succeeded.all():
        return ()
    rows = _even(len(succeeded))
    shape = likeliest(observed.points[rows], succeeded[rows], space.width)
    model = Success(observed.points, succeeded, space.width, shape)
    return (Safety(model, _CHANCE, 1.0),)


def _even(count: int) -> Positions:
    return np.unique(np.linspace(0, count - 1, min(count, _FITTED)).astype(np.int64))


def _representative(labels: Array) -> Positions:
    """Return the rows to fit hyperparameters to: all, or the best and an even spread of the others."""
    if len(labels) <= _FITTED:
        return np.arange(len(labels), dtype=np.int64)
    order = np.argsort(-labels, kind="stable")
    half = _FITTED // 2
    spread = np.linspace(half, len(labels) - 1, _FITTED - half).astype(np.int64)
    return np.sort(np.concatenate([order[:half], order[spread]])).astype(np.int64)


def bound_score(
    beliefs: Sequence[Belief],
    succeed: Sequence[Safety],
    pending: Array,
    coefficient: float,
    rng: np.random.Generator,
) -> Score:
    """Return the score that the upper bounds give. With one objective it is that objective's bound, with
    several it is what the bounds add to the Pareto front. It is weighed by safety where the spec asks for it,
    and by the chance of success (`successes`) where trials failed."""
    aims = [belief for belief in beliefs if belief.metric.safety is None]
    safeties = [
        *succeed,
        *(
            Safety(belief.known, _wanted(belief.metric))
            for belief in beliefs
            if belief.metric.safety is not None
        ),
    ]
    bounds = [aim.bound(pending, coefficient) for aim in aims]
    if len(aims) > 1:
        score: Score = _front_gain(aims, bounds, pending, rng)
        floor = 0.0
    elif aims:
        score, floor = bounds[0], float(aims[0].data.labels.min()) - 0.5
    else:
        score, floor = beliefs[0].bound(pending, coefficient), -1.0
    return SafeScore(score, safeties, floor) if safeties else score


def _wanted(metric: Metric) -> float:
    fraction = metric.safe_fraction
    return _DEFAULT_SAFE_FRACTION if fraction is None else max(fraction, _LEAST_SAFE_FRACTION)


def _front_gain(
    aims: Sequence[Belief], bounds: Sequence[UpperBound], pending: Array, rng: np.random.Generator
) -> FrontGain:
    along = directions(len(aims), rng)
    labels = np.column_stack([aim.data.labels for aim in aims])
    reference = labels.min(axis=0) - 0.1
    if len(pending):
        expected = np.column_stack([aim.known.predict(pending)[0] for aim in aims])
        labels = np.vstack([labels, expected])
    reached = scalarized(labels, along, reference).max(axis=0)
    return FrontGain(tuple(bounds), along, reference, reached)


_LOG_OFFSET = 1.5
"""The paper's: how much the logarithm stretches; 1 would not stretch at all."""

_TAIL = 0.2
"""Share of the trials, the worst ones, for which only the ranks count."""

_FAR = 1e8
"""A value that is so many times farther from the best than the median counts only by its rank: a penalty,
say."""


def warp(values: Array) -> Array:
    """Return labels of values that are to be maximized: within [-0.5, 0.5], monotone; 0 if all are alike."""
    return _log_warped(_tail_ranked(_tamed(values)))


def margins(values: Array, threshold: float) -> Array:
    """Return labels of a safety metric's values, all of them known: positive above the threshold, of about
    the size that `warp` gives."""
    away = _tamed(values / 2.0 - threshold / 2.0)
    width = float(np.sqrt(np.mean(away**2)))
    return np.clip(away / (4.0 * width), -1.0, 1.0) if width > 0.0 else np.zeros(values.shape)


def _tamed(values: Array) -> Array:
    """Return the values, all scaled by the same power of two if their squares would overflow or vanish."""
    peak = float(np.abs(values).max())
    return np.ldexp(values, -int(np.frexp(peak)[1])) if not 1e-100 < peak < 1e100 else values


def _tail_ranked(values: Array) -> Array:
    """Return the values, those below the pivot moved to where half a normal distribution, as wide as the
    others, has them."""
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
    """Return the worst value that is kept as it is."""
    count = len(ascending)
    best, middle = float(ascending[-1]), float(ascending[count // 2])
    near = int(np.searchsorted(ascending, best - _FAR * (best - middle)))
    return float(ascending[max(near, math.ceil(_TAIL * (count - 1)))])


def _log_warped(values: Array) -> Array:
    """Move the best to 0.5 and the worst to -0.5."""
    best, worst = float(values.max()), float(values.min())
    if best == worst:
        return np.zeros(values.shape)
    share = (best - values) / (best - worst)
    return 0.5 - np.log1p(share * (_LOG_OFFSET - 1.0)) / np.log(_LOG_OFFSET)
