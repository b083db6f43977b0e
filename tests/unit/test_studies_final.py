"""Which measurement of a trial becomes its final one."""

import pytest

from trainshed.core.study.progress import final_measurement
from trainshed.core.study.records import Measurement
from trainshed.core.study.spec import Goal, Metric, Selection, StudySpec

LOSS = Metric("loss", Goal.MINIMIZE)
ACCURACY = Metric("accuracy", Goal.MAXIMIZE)
FAIRNESS = Metric("fairness", Goal.MAXIMIZE, safety=0.5)


def study(*metrics: Metric, selection: Selection = Selection.LAST) -> StudySpec:
    return StudySpec((), metrics, selection=selection)


def measured(step: int, **metrics: float) -> Measurement:
    return Measurement(tuple(metrics.items()), step)


def test_last() -> None:
    """spec/tuning#measurements: last or best measurement."""
    all_three = [measured(1, loss=3), measured(2, loss=1), measured(3, loss=2)]
    assert final_measurement(study(LOSS), all_three) == all_three[2]


@pytest.mark.parametrize(("metric", "best"), [(LOSS, 1), (Metric("loss", Goal.MAXIMIZE), 0)])
def test_best_goes_by_the_goal(metric: Metric, best: int) -> None:
    """spec/tuning#measurements: last or best measurement."""
    all_three = [measured(1, loss=3), measured(2, loss=1), measured(3, loss=2)]
    spec = study(metric, selection=Selection.BEST)
    assert final_measurement(spec, all_three) == all_three[best]


def test_earliest_of_equals_is_best() -> None:
    spec = study(LOSS, selection=Selection.BEST)
    assert final_measurement(spec, [measured(1, loss=1), measured(2, loss=1)]) == measured(
        1, loss=1
    )


@pytest.mark.parametrize("selection", list(Selection))
def test_what_lacks_a_metric_is_passed_over(selection: Selection) -> None:
    """facts/tuning#metrics: the tag must be the metric's id."""
    spec = study(LOSS, FAIRNESS, selection=selection)
    assert final_measurement(
        spec, [measured(1, loss=2, fairness=1), measured(2, loss=1), measured(3, other=1)]
    ) == measured(1, loss=2, fairness=1)


@pytest.mark.parametrize("selection", list(Selection))
def test_nothing_measured_is_infeasible(selection: Selection) -> None:
    """facts/tuning#metrics: a trial without metric is INFEASIBLE."""
    assert final_measurement(study(LOSS, selection=selection), []) is None
    assert final_measurement(study(LOSS, selection=selection), [measured(1, other=1)]) is None


def test_of_several_objectives_the_last_with_all_counts() -> None:
    spec = study(LOSS, ACCURACY, selection=Selection.BEST)
    both = [measured(1, loss=0, accuracy=1), measured(2, loss=1, accuracy=0), measured(3, loss=0)]
    assert final_measurement(spec, both) == both[1]
