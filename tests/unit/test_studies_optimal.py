"""Optimal trials: the best trial, or the Pareto front of several objectives."""

import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.core.study.progress import optimal_trials
from trainshed.core.study.records import Measurement, StudyUid, Trial, TrialState
from trainshed.core.study.spec import Goal, Metric, StudySpec

UP, DOWN = Metric("up", Goal.MAXIMIZE), Metric("down", Goal.MINIMIZE)
THIRD = Metric("third", Goal.MAXIMIZE)


def trial_with(number: int, **metrics: float) -> Trial:
    final = Measurement(tuple(metrics.items())) if metrics else None
    return Trial(StudyUid(1), number, TrialState.SUCCEEDED, (), created=0, final=final)


def numbers(spec: StudySpec, trials: Sequence[Trial]) -> list[int]:
    return [trial.number for trial in optimal_trials(spec, trials)]


def test_trials_without_all_final_metrics_are_never_optimal() -> None:
    trials = [trial_with(1), trial_with(2, up=9), trial_with(3, up=1, down=1)]
    assert numbers(StudySpec((), (UP, DOWN)), trials) == [3]
    assert numbers(StudySpec((), (UP, DOWN)), trials[:2]) == []


scores = st.integers(0, 4).map(float)


@given(st.lists(st.tuples(scores, scores, scores), max_size=25), st.sampled_from([2, 3]))
def test_pareto_front_contains_exactly_the_undominated_trials(
    points: list[tuple[float, ...]], count: int
) -> None:
    spec = StudySpec((), (UP, DOWN, THIRD)[:count])
    trials = [
        trial_with(index + 1, up=point[0], down=point[1], third=point[2])
        for index, point in enumerate(points)
    ]
    goods = [(point[0], -point[1], point[2])[:count] for point in points]

    def is_dominated(good: tuple[float, ...]) -> bool:
        others = (other for other in goods if other != good)
        return any(all(a >= b for a, b in zip(other, good, strict=True)) for other in others)

    expected = [index + 1 for index, good in enumerate(goods) if not is_dominated(good)]
    assert numbers(spec, trials) == expected


@pytest.mark.parametrize("count", [2, 3])
def test_pareto_front_of_20000_trials_is_fast(count: int) -> None:
    """A quadratic algorithm would take minutes for 20,000 trials."""
    draw = random.Random(1)
    trials = [
        trial_with(number, up=draw.random(), down=draw.random(), third=draw.random())
        for number in range(1, 20_001)
    ]
    begun = time.process_time()
    front = numbers(StudySpec((), (UP, DOWN, THIRD)[:count]), trials)
    assert 1 < len(front) < 1000
    assert time.process_time() - begun < 5
