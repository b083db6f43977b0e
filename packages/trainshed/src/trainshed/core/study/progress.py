"""The progress of a study: final measurements, objectives, and its optimal trials. Pure.

The module does not use numpy, because the service calls it at the end of every trial.
"""

from collections.abc import Iterable, Sequence
from operator import ge

from trainshed.core.study.records import Measurement, Trial
from trainshed.core.study.spec import Goal, Metric, Selection, StudySpec


def score(metric: Metric, value: float) -> float:
    """Return the value of a metric with its sign changed for MINIMIZE, so that a larger score is better."""
    return value if metric.goal is Goal.MAXIMIZE else -value


def final_measurement(spec: StudySpec, measurements: Iterable[Measurement]) -> Measurement | None:
    """Select the final one of a trial's measurements, which are in chronological order.

    Return None if no measurement contains all metrics of the study. The trial is then infeasible
    (facts/tuning#metrics). LAST: the last complete measurement. BEST: the complete measurement with the best
    objective, and the earliest of equal ones. The public API does not define BEST for several objectives, so
    the last complete measurement is used.
    """
    ids = [metric.id for metric in spec.metrics]
    complete = [item for item in measurements if None not in map(item.value, ids)]
    if not complete:
        return None
    aim, *others = spec.metrics
    if spec.selection is Selection.LAST or others:
        return complete[-1]
    return max(complete, key=lambda item: score(aim, item.value(aim.id) or 0.0))


Scores = tuple[float, ...]


def optimal_trials(spec: StudySpec, trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return the Pareto-optimal trials, ascending by number. For one objective, return all trials with the
    best value. Trials without a final measurement of all metrics are omitted. The running time grows with the
    number of trials times the number of results."""
    rated = [(scores, trial) for trial in trials if (scores := _scores(spec, trial.final))]
    front = _front({scores for scores, _ in rated})
    best = [trial for scores, trial in rated if scores in front]
    return tuple(sorted(best, key=lambda trial: trial.number))


def _scores(spec: StudySpec, final: Measurement | None) -> Scores:
    """Return the score of each metric, or () if a metric is missing. A larger score is better."""
    values = [(metric, final.value(metric.id)) for metric in spec.metrics] if final else []
    scores = tuple(score(metric, value) for metric, value in values if value is not None)
    return scores if len(scores) == len(spec.metrics) else ()


def _front(all_scores: set[Scores]) -> set[Scores]:
    """Return the Pareto front: the scores that no other scores dominate. In descending order, dominating
    scores precede dominated ones."""
    front: set[Scores] = set()
    for scores in sorted(all_scores, reverse=True):
        if not any(all(map(ge, other, scores)) for other in front):
            front.add(scores)
    return front
