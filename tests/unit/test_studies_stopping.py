"""Early stopping on synthetic curves: trials that must stop, must continue, or are too early to decide."""

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
    goal: Goal = Goal.MAXIMIZE, selection: Selection = Selection.LAST, rule: MedianStopping | None = RULE
) -> StudySpec:
    return StudySpec((), (Metric("m", goal),), selection=selection, median_stopping=rule)


def curve(number: int, values: Sequence[float], *, over: bool = True) -> Curve:
    """Return a curve with one measurement per step and ten seconds per step."""
    measurements = tuple(
        Measurement((("m", value),), step, step * 10 * NS) for step, value in enumerate(values, start=1)
    )
    return Curve(number, measurements, over)


def rising(end: float, pace: float = 10.0) -> list[float]:
    """Return values that approach `end` at a decreasing rate."""
    return [end * (1 - math.exp(-step / pace)) for step in range(1, STEPS + 1)]


def negate(trial: Curve) -> Curve:
    turned = tuple(
        Measurement((("m", -(point.value("m") or 0.0)),), point.step, point.elapsed)
        for point in trial.measurements
    )
    return Curve(trial.number, turned, trial.is_over)


FINISHED = [curve(i, rising(0.5 + 0.04 * i, 8 + i % 3)) for i in range(1, 11)]
FINISHED.append(curve(11, [-1.7e308] * 2))  # A diverged trial: the sum of its values exceeds the float range.
HOPELESS = curve(99, rising(0.3)[:30], over=False)
PROMISING = curve(98, rising(0.95)[:30], over=False)


def decide(spec: StudySpec, trial: Curve, others: Sequence[Curve]) -> StoppingVerdict:
    return decide_all(spec, [*others, trial], (trial.number,))[0]


def verdict(trial: Curve, others: Sequence[Curve], goal: Goal) -> StoppingVerdict:
    if goal is Goal.MINIMIZE:
        trial, others = negate(trial), [negate(other) for other in others]
    return decide(study(goal), trial, others)


@pytest.mark.parametrize("goal", list(Goal))
def test_early_stopping_stops_a_hopeless_trial_and_continues_a_promising_trial(goal: Goal) -> None:
    """spec/tuning#early-stopping: median stopping, for both goals."""
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
def test_early_stopping_waits_for_enough_finished_trials(trial: Curve, others: Sequence[Curve]) -> None:
    """spec/tuning#early-stopping: the verdict contains the reason "Too early"."""
    decision = decide(study(), trial, others)
    assert not decision.should_stop
    assert decision.why.startswith("Too early")


def test_early_stopping_needs_a_rule_a_running_trial_and_a_single_objective() -> None:
    over = Curve(99, HOPELESS.measurements, True)
    two = StudySpec((), (Metric("m", Goal.MAXIMIZE), Metric("n", Goal.MAXIMIZE)), median_stopping=RULE)
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
@example(Goal.MAXIMIZE, Selection.LAST, [[0.1] * 3] * 6, [0.1] * 3)  # The sum of these values is rounded up.
def test_best_trial_so_far_is_never_stopped(
    goal: Goal, selection: Selection, others: list[list[float]], own: list[float]
) -> None:
    """spec/tuning#early-stopping: for any curves, a trial that has reached the best value continues."""
    best = max(value for values in (*others, own) for value in values)
    trial = curve(99, [*own, best], over=False)
    finished = [curve(i, values) for i, values in enumerate(others, start=1)]
    if goal is Goal.MINIMIZE:
        trial, finished = negate(trial), [negate(other) for other in finished]
    assert not decide(study(goal, selection), trial, finished).should_stop


def test_early_stopping_ignores_trials_without_earlier_measurements() -> None:
    late = [Curve(i, (Measurement((("m", 5.0),), 40),), True) for i in range(1, 9)]
    decision = decide(study(), curve(9, [0.1] * 10, over=False), late)
    assert decision.why.startswith("Too early: 0 finished trials")


def test_early_stopping_of_many_trials_reads_each_curve_once() -> None:
    """Reading 500 curves of 1,000 points for each of 100 trials would block the job for a minute."""
    once = [Curve(other.number, iter(other.measurements), True) for other in FINISHED]  # pyright: ignore[reportArgumentType] # on purpose
    verdicts = decide_all(study(), [*once, HOPELESS], (HOPELESS.number, HOPELESS.number))
    assert all(verdict.should_stop for verdict in verdicts)
