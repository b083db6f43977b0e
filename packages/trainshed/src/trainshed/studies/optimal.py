"""The optimal trials of a study: no other is better in one objective without being worse in another
(spec/tuning#objectives).

Pure. One objective needs a pass, two need a sort; numpy is loaded only for more.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from trainshed.core.study.progress import objectives, score
from trainshed.core.study.records import Measurement
from trainshed.core.study.spec import Goal, Metric, StudySpec


class Tried(Protocol):
    """What is needed of a trial here; `core.study.records.Trial` and `studies.port.Seen` both have it."""

    @property
    def number(self) -> int: ...
    @property
    def final(self) -> Measurement | None: ...


AnyTrial = TypeVar("AnyTrial", bound=Tried)
Scores = tuple[float, ...]


def optimal_trials(spec: StudySpec, trials: Sequence[AnyTrial]) -> tuple[AnyTrial, ...]:
    """Return the Pareto-optimal trials, ascending by number; for one objective the best, with all equal ones.

    Trials are left out that have no final measurement, lack a metric, or are unsafe: a safety metric is on
    the wrong side of its threshold. If all metrics are safety metrics, every safe trial is as good as any
    other. Takes n log n steps for up to two objectives, and at most n times the size of the front for more.
    """
    rated = [(scores, trial) for trial in trials if (scores := _scores(spec, trial)) is not None]
    front = _front_for(len(objectives(spec)))({scores for scores, _ in rated})
    best = [trial for scores, trial in rated if scores in front]
    return tuple(sorted(best, key=lambda trial: trial.number))


def is_safe(metric: Metric, value: float) -> bool:
    """Whether the value is on the right side of the metric's threshold; it may be the threshold itself."""
    if metric.safety is None:
        return True
    return value >= metric.safety if metric.goal is Goal.MAXIMIZE else value <= metric.safety


def _scores(spec: StudySpec, trial: Tried) -> Scores | None:
    """Return the objectives, more is better in each; None if the trial does not take part."""
    if trial.final is None:
        return None
    scores: list[float] = []
    for metric in spec.metrics:
        value = trial.final.value(metric.id)
        if value is None or not is_safe(metric, value):
            return None
        if metric.safety is None:
            scores.append(score(metric, value))
    return tuple(scores)


def _front_for(count: int) -> Callable[[set[Scores]], set[Scores]]:
    if count <= 1:
        return lambda all_scores: {max(all_scores)} if all_scores else set()
    return lambda all_scores: set(_staircase(all_scores) if count == 2 else _sieve(all_scores))


def _staircase(all_scores: set[Scores]) -> Iterator[Scores]:
    """Yield, from the best of the first objective downwards, what is better in the second than all before."""
    reached = -float("inf")
    for scores in sorted(all_scores, reverse=True):
        if scores[1] > reached:
            reached = scores[1]
            yield scores


def _sieve(all_scores: set[Scores]) -> Iterator[Scores]:
    """Yield what is not dominated by the front so far. In descending order dominating scores come first."""
    import numpy as np

    ordered = sorted(all_scores, reverse=True)
    front = np.empty((len(ordered), len(ordered[0]) if ordered else 0))
    size = 0
    for scores in ordered:
        if not (front[:size] >= np.array(scores)).all(axis=1).any():
            front[size] = scores
            size += 1
            yield scores
