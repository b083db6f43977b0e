"""What a study's trials say of its metrics: one fitted process per metric, and the scores that follow from
them.

Between the stored trials and the search: knows the spec and the trials, not how points are found. Of a long
study the model is shown the best trials, the newest and an even spread: a Gaussian process costs the cube of
its points, a suggestion has to stay under half a second at 20,000 trials, and most of those say the same. The
choice is made on plain values, before anything is encoded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainshed.core.study.progress import score
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
from trainshed.studies.gp.success import Success, likeliest
from trainshed.studies.gp.warping import margins, warp
from trainshed.studies.port import Seen
from trainshed.studies.routines import Array, Mask, Positions
from trainshed.studies.space import Space

_FITTED = 160
"""Rows that the hyperparameters are fitted to; more say little more about them."""

_ITERATIONS = 40
"""Of the hyperparameter fit."""

_SAFE_UNLESS_SAID = 0.5
"""Share of safe trials that is wanted where the spec names none."""

_LEAST_SAFE = 0.01
"""Who wants no trial to be safe still gets the safer one of two equals."""

_CHANCE = 0.6
"""Probability of success from which on a point is worth all that it promises. At the border of a region that
fails each trial then halves what is unknown of it; nearer to certainty the search would stay away from it."""

MOST = 400
"""Completed trials that the model takes in."""

_BEST = 160
_NEWEST = 80
MOST_PENDING = 100
"""Pending trials that the model takes in, the newest."""


@dataclass(frozen=True, slots=True)
class Belief:
    """What is known of one metric."""

    metric: Metric
    #: Which of the trials that the model is shown its data are from, ascending.
    rows: Positions
    data: Data
    hyper: Hyperparameters
    known: Posterior

    def bound(self, pending: Array, coefficient: float) -> UpperBound:
        """`pending`: embedded, shape (k, q)."""
        if len(pending) == 0:
            return UpperBound(self.known, self.known, coefficient)
        return UpperBound(self.known, Posterior(self.data, self.hyper, pending), coefficient)

    def of(self, rows: Positions, noise: Noise) -> "Belief":
        """What these rows of the data say alone, of their surroundings."""
        data = replace(self.data.only(rows), labels=warp(self.data.labels[rows]))
        hyper = _fitted(data, noise)
        return Belief(self.metric, self.rows[rows], data, hyper, Posterior(data, hyper))


@dataclass(frozen=True, slots=True)
class Observed:
    """What the trials have measured, as the model is shown it."""

    #: Of all completed trials by metric, more is better, shape (n, metrics).
    values: Array
    #: Those that the model is shown.
    rows: Positions
    #: Their embeddings.
    points: Array

    def succeeded(self, spec: StudySpec) -> Mask:
        """Of all completed trials: whether they have a value of every objective."""
        known: Mask = np.isfinite(self.values[:, objective_columns(spec)])
        return np.asarray(known.all(axis=1), dtype=np.bool_)


def objective_columns(spec: StudySpec) -> list[int]:
    """Which metrics are objectives."""
    return [at for at, metric in enumerate(spec.metrics) if metric.safety is None]


def believe(spec: StudySpec, space: Space, observed: Observed) -> tuple[Belief, ...]:
    """One per metric, in the spec's order. `observed.is_enough` for that."""
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
    data = Data(observed.points[rows], labels, space.groups, space.width, space.turnable)
    hyper = _fitted(data, spec.noise)
    return Belief(metric, rows, data, hyper, Posterior(data, hyper))


def _fitted(data: Data, noise: Noise) -> Hyperparameters:
    priors = HIGH_NOISE if noise is Noise.HIGH else LOW_NOISE
    return fit(data.only(_representative(data.labels)), priors, _ITERATIONS)


def successes(spec: StudySpec, space: Space, observed: Observed) -> tuple[Safety, ...]:
    """Where trials succeed, modelled apart from what they measure; nothing if all do."""
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
    """Rows to fit hyperparameters to: all, or the best and an even spread of the others."""
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
    """What is to be maximized by whoever trusts the upper bounds: of one objective its bound, of several what
    the bounds add to the front; weighed by safety where the spec asks for it, and by success (`successes`)
    where trials failed."""
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
    return _SAFE_UNLESS_SAID if fraction is None else max(fraction, _LEAST_SAFE)


def exploring_score(
    belief: Belief,
    succeed: Sequence[Safety],
    pending: Array,
    coefficient: float,
    explored: float,
) -> Score:
    """Pure exploration beside pending trials. The threshold is the mean where the upper bound of all that was
    tried is highest; a point may be good if its bound with coefficient `explored` reaches it."""
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


@dataclass(frozen=True, slots=True)
class Shown:
    """Which trials the model is shown."""

    #: Of **all** completed trials by metric, more is better, NaN where there is none, shape (n, metrics).
    values: Array
    #: Which of them the model is shown, ascending.
    rows: Positions
    #: The completed trials that it is shown.
    done: tuple[Seen, ...]
    #: The others that it is shown.
    pending: tuple[Seen, ...]

    def is_enough(self, spec: StudySpec) -> bool:
        """Whether every metric was measured, and all objectives by one trial."""
        known = np.isfinite(self.values)
        return bool(known.any(axis=0).all() and known[:, objective_columns(spec)].all(axis=1).any())

    def with_pending(self, trial: Seen) -> "Shown":
        return replace(self, pending=(*self.pending, trial)[-MOST_PENDING:])


def choose(spec: StudySpec, trials: Sequence[Seen]) -> Shown:
    """`trials` in any order."""
    ordered = sorted(trials, key=lambda trial: trial.number)
    done = [trial for trial in ordered if trial.state.is_over]
    pending = [trial for trial in ordered if not trial.state.is_over]
    values = np.array([_values(spec, trial) for trial in done]).reshape(
        len(done), len(spec.metrics)
    )
    rows = _rows(values[:, objective_columns(spec)])
    return Shown(
        values, rows, tuple(done[row] for row in map(int, rows)), tuple(pending[-MOST_PENDING:])
    )


def _values(spec: StudySpec, trial: Seen) -> list[float]:
    if trial.final is None:
        return [np.nan] * len(spec.metrics)
    found = ((metric, trial.final.value(metric.id)) for metric in spec.metrics)
    return [np.nan if value is None else score(metric, value) for metric, value in found]


def _rows(values: Array) -> Positions:
    """`values`: of the objectives. With several of them the sum of the ranks says which trials are best."""
    count = len(values)
    if count <= MOST:
        return np.arange(count)
    ranks = np.zeros(count)
    for column in values.T:
        order = np.argsort(np.where(np.isnan(column), np.inf, -column), kind="stable")
        ranks[order] += np.arange(count)
    chosen = np.zeros(count, dtype=np.bool_)
    chosen[np.argsort(ranks, kind="stable")[:_BEST]] = True
    chosen[-_NEWEST:] = True
    rest = np.flatnonzero(~chosen)
    places = np.linspace(0, len(rest) - 1, MOST - int(chosen.sum())).astype(np.int64)
    chosen[rest[places]] = True
    return np.flatnonzero(chosen)
