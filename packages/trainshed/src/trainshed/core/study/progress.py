"""The progress of a study: final measurements, objectives, and its optimal trials.

Pure, and without numpy: the service calls it for every trial that ends.
"""

from collections.abc import Iterable, Sequence
from operator import ge

from trainshed.core.study.records import Measurement, Trial
from trainshed.core.study.spec import Goal, Metric, Selection, StudySpec


def score(metric: Metric, value: float) -> float:
    """Return the value with a sign such that more is better, whatever the goal."""
    return value if metric.goal is Goal.MAXIMIZE else -value


def final_measurement(spec: StudySpec, measurements: Iterable[Measurement]) -> Measurement | None:
    """Return the final one of a trial's measurements, which are in chronological order. None if no
    measurement can be final; then the trial is infeasible (facts/tuning#metrics).

    A measurement that lacks one of the study's metrics cannot be a final one. LAST: the last one
    that has all. BEST: the one with the best value of the objective, the earliest of equal ones.
    The public API does not define the best of several objectives; then it is the last one, too.
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
    """Return the Pareto-optimal trials, ascending by number; for one objective the best, with all equal ones.

    Trials without a final measurement of all metrics are left out. Takes at most n times the front.
    """
    rated = [(scores, trial) for trial in trials if (scores := _scores(spec, trial.final))]
    front = _front({scores for scores, _ in rated})
    best = [trial for scores, trial in rated if scores in front]
    return tuple(sorted(best, key=lambda trial: trial.number))


def _scores(spec: StudySpec, final: Measurement | None) -> Scores:
    """Return the metrics, more is better in each; () if one is missing."""
    values = [(metric, final.value(metric.id)) for metric in spec.metrics] if final else []
    scores = tuple(score(metric, value) for metric, value in values if value is not None)
    return scores if len(scores) == len(spec.metrics) else ()


def _front(all_scores: set[Scores]) -> set[Scores]:
    """Return what nothing dominates. In descending order what dominates others comes before them."""
    front: set[Scores] = set()
    for scores in sorted(all_scores, reverse=True):
        if not any(all(map(ge, other, scores)) for other in front):
            front.add(scores)
    return front
