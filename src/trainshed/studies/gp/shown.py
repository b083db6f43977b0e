"""What of a study the model is shown: all of it, or of a long one the best, the newest and an even spread.

A Gaussian process costs the cube of its points. A suggestion has to stay under half a second at 20,000 trials, and
most of those say the same. The choice is made on plain values, before anything is encoded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainshed.core.study.final import score
from trainshed.core.study.spec import StudySpec
from trainshed.studies.port import Seen
from trainshed.studies.routines import Array, Positions

MOST = 400
"""Completed trials that the model takes in."""

_BEST = 160
_NEWEST = 80
MOST_PENDING = 100
"""Pending trials that the model takes in, the newest."""


@dataclass(frozen=True, slots=True)
class Shown:
    """`values`: of completed trials by metric, more is better, NaN where there is none, shape (n, metrics); of **all**
    completed trials. `rows`: which of them the model is shown, ascending. `done` and `pending`: the trials it is shown."""

    values: Array
    rows: Positions
    done: tuple[Seen, ...]
    pending: tuple[Seen, ...]

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
    aims = [at for at, metric in enumerate(spec.metrics) if metric.safety is None]
    rows = _rows(values[:, aims])
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
