"""The optimal trials of a study: no other is better in one objective without being worse in another
(spec/tuning#objectives).

Pure.
"""

from collections.abc import Sequence
from operator import ge
from typing import Protocol, TypeVar

from trainshed.core.study.progress import score
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
    other. Takes at most n times the size of the front.
    """
    rated = [(scores, trial) for trial in trials if (scores := _scores(spec, trial)) is not None]
    front = _front({scores for scores, _ in rated})
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


def _front(all_scores: set[Scores]) -> set[Scores]:
    """Return what nothing dominates. In descending order what dominates others comes before them."""
    front: set[Scores] = set()
    for scores in sorted(all_scores, reverse=True):
        if not any(all(map(ge, other, scores)) for other in front):
            front.add(scores)
    return front
