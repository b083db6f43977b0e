"""Selects the trials for the Gaussian processes. In a long study these are the best trials, the newest ones,
and an even selection of the rest. The cost of a Gaussian process grows with the cube of its points. A
suggestion must take less than half a second with 20,000 trials, most of which add no information. The
selection uses plain values, before any encoding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainshed.core.study.progress import score
from trainshed.core.study.spec import StudySpec
from trainshed.studies.port import TrialData
from trainshed.studies.routines import Array, Mask, Positions

MAX_TRIALS = 400
"""Maximum completed trials in the model."""

_BEST_TRIALS = 160
"""Number of best trials among them."""

_NEWEST_TRIALS = 80
"""Number of newest trials among them."""

MAX_PENDING = 100
"""Maximum pending trials in the model. The newest ones are used."""


@dataclass(frozen=True, slots=True)
class ModelTrials:
    """The trials in the model."""

    #: Values of **all** completed trials by metric, to be maximized, shape (n, metrics). NaN marks a missing
    #: value.
    values: Array
    #: Indexes of the model's trials, ascending.
    rows: Positions
    #: The completed trials in the model.
    done: tuple[TrialData, ...]
    #: The pending trials in the model.
    pending: tuple[TrialData, ...]

    @property
    def success_mask(self) -> Mask:
        """Return a mask of all completed trials: whether the trial has a value of every metric."""
        return np.asarray(np.isfinite(self.values).all(axis=1), dtype=np.bool_)

    @property
    def is_enough(self) -> bool:
        """Return whether the model can be fitted: at least one trial has a value of every metric."""
        return bool(self.success_mask.any())

    def with_pending(self, trial: TrialData) -> "ModelTrials":
        """Return a copy with one more pending trial."""
        return replace(self, pending=(*self.pending, trial)[-MAX_PENDING:])


def choose(spec: StudySpec, trials: Sequence[TrialData]) -> ModelTrials:
    """Return the trials for the model. `trials` may be in any order."""
    ordered = sorted(trials, key=lambda trial: trial.number)
    done = [trial for trial in ordered if trial.state.is_over]
    pending = [trial for trial in ordered if not trial.state.is_over]
    values = np.array([_values(spec, trial) for trial in done]).reshape(len(done), len(spec.metrics))
    rows = _rows(values)
    return ModelTrials(
        values, rows, tuple(done[row] for row in map(int, rows)), tuple(pending[-MAX_PENDING:])
    )


def _values(spec: StudySpec, trial: TrialData) -> list[float]:
    if trial.final is None:
        return [np.nan] * len(spec.metrics)
    measured = ((metric, trial.final.value(metric.id)) for metric in spec.metrics)
    return [np.nan if value is None else score(metric, value) for metric, value in measured]


def _rows(values: Array) -> Positions:
    """Return the indexes of the completed trials for the model, selected by `values`. With several metrics,
    trials are compared by the sum of their ranks."""
    count = len(values)
    if count <= MAX_TRIALS:
        return np.arange(count)
    ranks = np.zeros(count)
    for column in values.T:
        order = np.argsort(np.where(np.isnan(column), np.inf, -column), kind="stable")
        ranks[order] += np.arange(count)
    chosen = np.zeros(count, dtype=np.bool_)
    chosen[np.argsort(ranks, kind="stable")[:_BEST_TRIALS]] = True
    chosen[-_NEWEST_TRIALS:] = True
    rest = np.flatnonzero(~chosen)
    places = np.linspace(0, len(rest) - 1, MAX_TRIALS - int(chosen.sum())).astype(np.int64)
    chosen[rest[places]] = True
    return np.flatnonzero(chosen)
