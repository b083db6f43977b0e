"""Early stopping on made curves: where it must stop, must not, and must say that it is too early."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainshed.core.study.records import Measurement
from trainshed.core.study.spec import Goal, MedianStopping, Metric, Selection, StudySpec
from trainshed.studies.port import Curve, StoppingVerdict
from trainshed.studies.stopping import decide_all

pytestmark = pytest.mark.numerical
NS = 1_000_000_000
STEPS = 50
RULE = MedianStopping()


def study(
    goal: Goal = Goal.MAXIMIZE,
    selection: Selection = Selection.LAST,
    rule: MedianStopping | None = RULE,
) -> StudySpec:
    return StudySpec((), (Metric("m", goal),), selection=selection, median_stopping=rule)


def curve(number: int, values: Sequence[float], *, over: bool = True) -> Curve:
    """One measurement a step, and ten seconds a step."""
    measurements = tuple(
        Measurement((("m", value),), step, step * 10 * NS)
        for step, value in enumerate(values, start=1)
    )
    return Curve(number, measurements, over)


def rising(end: float, pace: float = 10.0) -> list[float]:
    """To `end` ever more slowly."""
    return [end * (1 - math.exp(-step / pace)) for step in range(1, STEPS + 1)]


def negated(trial: Curve) -> Curve:
    turned = tuple(
        Measurement((("m", -(point.value("m") or 0.0)),), point.step, point.elapsed)
        for point in trial.measurements
    )
    return Curve(trial.number, turned, trial.is_over)


FINISHED = [curve(i, rising(0.5 + 0.04 * i, 8 + i % 3)) for i in range(1, 11)]
FINISHED.append(curve(11, [-1.7e308] * 2))  # It diverged: its sum is no float any more.
HOPELESS = curve(99, rising(0.3)[:30], over=False)
PROMISING = curve(98, rising(0.95)[:30], over=False)


def decide(spec: StudySpec, trial: Curve, others: Sequence[Curve]) -> StoppingVerdict:
    return decide_all(spec, [*others, trial], (trial.number,))[0]


def verdict(trial: Curve, others: Sequence[Curve], goal: Goal) -> StoppingVerdict:
    if goal is Goal.MINIMIZE:
        trial, others = negated(trial), [negated(other) for other in others]
    return decide(study(goal), trial, others)


@pytest.mark.parametrize("goal", list(Goal))
def test_hopeless_trial_is_stopped_and_promising_one_is_not(goal: Goal) -> None:
    """spec/tuning#early-stopping"""
    assert verdict(HOPELESS, FINISHED, goal).should_stop
    decision = verdict(PROMISING, FINISHED, goal)
    assert not decision.should_stop
    assert "Too early" not in decision.why


@pytest.mark.parametrize(
    ("trial", "others"),
    [
        (HOPELESS, FINISHED[:4]),
        (Curve(99, (), False), FINISHED),
        (HOPELESS, [Curve(finished.number, finished.measurements, False) for finished in FINISHED]),
    ],
    ids=["few finished", "nothing measured", "all pending"],
)
def test_too_early(trial: Curve, others: Sequence[Curve]) -> None:
    """spec/tuning#early-stopping: early stopping."""
    decision = decide(study(), trial, others)
    assert not decision.should_stop
    assert decision.why.startswith("Too early")


def test_nothing_is_stopped_without_a_rule_after_the_end_or_for_several_objectives() -> None:
    over = Curve(99, HOPELESS.measurements, True)
    two = StudySpec(
        (), (Metric("m", Goal.MAXIMIZE), Metric("n", Goal.MAXIMIZE)), median_stopping=RULE
    )
    for decision in (
        decide(study(rule=None), HOPELESS, FINISHED),
        decide(study(), over, FINISHED),
        decide(two, HOPELESS, FINISHED),
    ):
        assert not decision.should_stop


@given(
    st.sampled_from(list(Goal)),
    st.sampled_from(list(Selection)),
    st.lists(st.lists(st.floats(-1, 1), min_size=5, max_size=12), min_size=6, max_size=9),
    st.lists(st.floats(-1, 1), min_size=1, max_size=12),
)
@example(Goal.MAXIMIZE, Selection.LAST, [[0.1] * 3] * 6, [0.1] * 3)  # Their sum is rounded up.
def test_best_so_far_is_never_stopped(
    goal: Goal, selection: Selection, others: list[list[float]], own: list[float]
) -> None:
    """spec/tuning#early-stopping: early stopping. Whatever the curves: who has reached the best value of all
    goes on."""
    best = max(value for values in (*others, own) for value in values)
    trial = curve(99, [*own, best], over=False)
    finished = [curve(i, values) for i, values in enumerate(others, start=1)]
    if goal is Goal.MINIMIZE:
        trial, finished = negated(trial), [negated(other) for other in finished]
    assert not decide(study(goal, selection), trial, finished).should_stop


def test_only_those_count_who_had_measured_by_then() -> None:
    late = [Curve(i, (Measurement((("m", 5.0),), 40),), True) for i in range(1, 9)]
    decision = decide(study(), curve(9, [0.1] * 10, over=False), late)
    assert decision.why.startswith("Too early: 0 finished trials")


def test_curves_are_read_once_for_all_verdicts() -> None:
    """Five hundred of a thousand points each, for a hundred trials, would hold up the job for a minute."""
    once = [Curve(other.number, iter(other.measurements), True) for other in FINISHED]  # pyright: ignore[reportArgumentType] # on purpose
    verdicts = decide_all(study(), [*once, HOPELESS], (HOPELESS.number, HOPELESS.number))
    assert all(verdict.should_stop for verdict in verdicts)
