"""What a study's trials say of its metrics: one Gaussian process per metric, fitted to the trials that
`selection` has chosen, and the scores that follow from them.

Knows the spec and the measured values, not how the search finds points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainshed.core.study.progress import score as signed
from trainshed.core.study.spec import Metric, Noise, StudySpec
from trainshed.studies.gp.acquisition import (
    Exploration,
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
from trainshed.studies.gp.warping import margins, warp
from trainshed.studies.routines import Array, Mask, Positions
from trainshed.studies.space import Space

_FITTED = 160
"""Most rows that the hyperparameters are fitted to; more rows say little more about them."""

_ITERATIONS = 40
"""Steps of the hyperparameter fit."""

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
    hyper = fit(data.only(_representative(data.labels)), priors, _ITERATIONS)
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


def exploring_score(
    belief: Belief,
    succeed: Sequence[Safety],
    pending: Array,
    coefficient: float,
    explored: float,
) -> Score:
    """Return the score for pure exploration beside pending trials. Only points that may be good count: those
    whose bound with the coefficient `explored` reaches a threshold, which is the mean at the tried or pending
    point with the highest upper bound."""
    bound = belief.bound(pending, explored)
    points = np.vstack([belief.data.points, pending])
    mean, deviation = belief.known.predict(points)
    threshold = float(mean[int((mean + coefficient * deviation).argmax())])
    score = Exploration(bound.known, bound.expected, threshold, explored)
    return SafeScore(score, succeed, -1.0) if succeed else score


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
