"""Which of a trial's measurements becomes its final one, and which metrics of a study are its objectives.

Pure, and without numpy: the service calls it for every trial that ends.
"""

from collections.abc import Iterable

from trainshed.core.study.spec import Goal, Metric, Selection, StudySpec
from trainshed.core.study.trials import Measurement


def objectives(spec: StudySpec) -> tuple[Metric, ...]:
    """The metrics that are to be made as good as can be: all but the safety metrics."""
    return tuple(metric for metric in spec.metrics if metric.safety is None)


def score(metric: Metric, value: float) -> float:
    """The value such that more is better, whatever the goal."""
    return value if metric.goal is Goal.MAXIMIZE else -value


def final_measurement(spec: StudySpec, measurements: Iterable[Measurement]) -> Measurement | None:
    """The final one of a trial's measurements, which come in the order in which they were made; None if none
    will do, and then the trial is infeasible (facts/tuning#metrics).

    A measurement that lacks one of the study's metrics, a safety metric among them, cannot be a final one.
    LAST: the last that has all. BEST: the one with the best value of the objective, the earliest of equals.
    What is best among several objectives is not said by the public API: then it is the last one, too.
    """
    complete = [one for one in measurements if _has_all(spec, one)]
    aims = objectives(spec)
    if not complete:
        return None
    if spec.selection is Selection.LAST or len(aims) != 1:
        return complete[-1]
    return max(complete, key=lambda one: score(aims[0], one.value(aims[0].id) or 0.0))


def _has_all(spec: StudySpec, measurement: Measurement) -> bool:
    return all(measurement.value(metric.id) is not None for metric in spec.metrics)
