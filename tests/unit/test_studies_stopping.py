"""Early stopping on made curves: where each rule must stop, must not, and must say that it is too early."""

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainshed.core.study.records import Measurement
from trainshed.core.study.spec import (
    DecayCurveStopping,
    Goal,
    MedianStopping,
    Metric,
    Selection,
    Stopping,
    StudySpec,
)
from trainshed.studies.port import Curve, StoppingVerdict
from trainshed.studies.stopping.deciding import decide

pytestmark = pytest.mark.numerical
NS = 1_000_000_000
STEPS = 50
RULES = (MedianStopping(), DecayCurveStopping())


def study(
    rule: Stopping | None, goal: Goal = Goal.MAXIMIZE, selection: Selection = Selection.LAST
) -> StudySpec:
    return StudySpec(
        (),
        (Metric("m", goal),),
        selection=selection,
        median_stopping=rule if isinstance(rule, MedianStopping) else None,
        decay_curve_stopping=rule if isinstance(rule, DecayCurveStopping) else None,
    )


def curve(number: int, values: Sequence[float], *, over: bool = True) -> Curve:
    """One measurement a step, and ten seconds a step."""
    measurements = tuple(
        Measurement((("m", value),), step, step * 10 * NS)
        for step, value in enumerate(values, start=1)
    )
    return Curve(number, measurements, over)


def rising(end: float, pace: float = 10.0, steps: int = STEPS) -> list[float]:
    """To `end` ever more slowly."""
    return [end * (1 - math.exp(-step / pace)) for step in range(1, steps + 1)]


def negated(one: Curve) -> Curve:
    turned = tuple(
        Measurement((("m", -(point.value("m") or 0.0)),), point.step, point.elapsed)
        for point in one.measurements
    )
    return Curve(one.number, turned, one.is_over)


def noisy(values: Sequence[float], seed: int, by: float = 0.01) -> list[float]:
    draw = random.Random(seed)
    return [value + draw.gauss(0, by) for value in values]


FINISHED = [curve(i, rising(0.5 + 0.04 * i, 8 + i % 3)) for i in range(1, 11)]
HOPELESS = curve(99, rising(0.3)[:30], over=False)
PROMISING = curve(98, rising(0.95)[:30], over=False)


def verdict(
    rule: Stopping, trial: Curve, others: Sequence[Curve], goal: Goal = Goal.MAXIMIZE
) -> StoppingVerdict:
    if goal is Goal.MINIMIZE:
        trial, others = negated(trial), [negated(other) for other in others]
    return decide(study(rule, goal), trial, others)


@pytest.mark.parametrize("goal", list(Goal))
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_hopeless_trial_is_stopped_and_promising_one_is_not(rule: Stopping, goal: Goal) -> None:
    """spec/tuning#early-stopping: early stopping (median, decay curve); goals."""
    assert verdict(rule, HOPELESS, FINISHED, goal).should_stop
    decision = verdict(rule, PROMISING, FINISHED, goal)
    assert not decision.should_stop
    assert "Too early" not in decision.why


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize(
    ("trial", "others"),
    [
        (HOPELESS, FINISHED[:4]),
        (Curve(99, (), False), FINISHED),
        (HOPELESS, [Curve(finished.number, finished.measurements, False) for finished in FINISHED]),
        (HOPELESS, []),
    ],
    ids=["few finished", "nothing measured", "all pending", "alone"],
)
def test_too_early(rule: Stopping, trial: Curve, others: Sequence[Curve]) -> None:
    """spec/tuning#early-stopping: early stopping."""
    decision = decide(study(rule), trial, others)
    assert not decision.should_stop
    assert decision.why.startswith("Too early")


def test_nothing_is_stopped_without_a_rule_after_the_end_or_for_several_objectives() -> None:
    over = Curve(99, HOPELESS.measurements, True)
    two = StudySpec(
        (),
        (Metric("m", Goal.MAXIMIZE), Metric("n", Goal.MAXIMIZE)),
        median_stopping=MedianStopping(),
    )
    for decision in (
        decide(study(None), HOPELESS, FINISHED),
        decide(study(MedianStopping()), over, FINISHED),
        decide(two, HOPELESS, FINISHED),
    ):
        assert not decision.should_stop


@given(
    st.sampled_from(RULES),
    st.sampled_from(list(Goal)),
    st.sampled_from(list(Selection)),
    st.lists(st.lists(st.floats(-1, 1), min_size=5, max_size=12), min_size=6, max_size=9),
    st.lists(st.floats(-1, 1), min_size=1, max_size=12),
)
@settings(deadline=None, max_examples=150)
def test_best_so_far_is_never_stopped(
    rule: Stopping, goal: Goal, selection: Selection, others: list[list[float]], own: list[float]
) -> None:
    """spec/tuning#early-stopping: early stopping. Whatever the curves: who has reached the best value of all
    goes on."""
    best = max(value for values in (*others, own) for value in values)
    trial = curve(99, [*own, best], over=False)
    finished = [curve(i, values) for i, values in enumerate(others, start=1)]
    if goal is Goal.MINIMIZE:
        trial, finished = negated(trial), [negated(other) for other in finished]
    assert not decide(study(rule, goal, selection), trial, finished).should_stop


# The median rule.


def test_median_counts_only_who_had_measured_by_then() -> None:
    late = [Curve(i, (Measurement((("m", 5.0),), 40),), True) for i in range(1, 9)]
    decision = decide(study(MedianStopping()), curve(9, [0.1] * 10, over=False), late)
    assert decision.why.startswith("Too early: 0 trials")


# Decay curve.


def test_decay_curve_lets_slow_starters_run_where_slow_starters_won() -> None:
    """API description: very low probability to beat the best. The same curve has none where all have the same
    pace."""
    trial = curve(99, rising(0.92, 30.0)[:15], over=False)
    slow_won = [curve(i, rising(0.4 + 0.05 * i, 3.0 * i)) for i in range(1, 11)]
    one_pace = [curve(i, rising(0.7 + 0.02 * i, 8.0)) for i in range(1, 11)]
    assert not decide(study(DecayCurveStopping()), trial, slow_won).should_stop
    assert decide(study(DecayCurveStopping()), trial, one_pace).should_stop


def test_decay_curve_is_not_blinded_by_a_diverged_trial() -> None:
    diverged = curve(50, [-math.exp(step) for step in range(STEPS)])
    assert decide(study(DecayCurveStopping()), HOPELESS, [*FINISHED, diverged]).should_stop
    assert not decide(study(DecayCurveStopping()), PROMISING, [*FINISHED, diverged]).should_stop


@pytest.mark.parametrize("values", [[0.5] * STEPS, rising(0.9)], ids=["flat", "alike"])
def test_decay_curve_with_nothing_to_learn_from(values: list[float]) -> None:
    """All finished trials are the same; who stands lower has no chance, who stands higher goes on."""
    others = [curve(i, values) for i in range(1, 11)]
    low = curve(99, [value - 0.1 for value in values[:30]], over=False)
    high = curve(99, [value + 0.1 for value in values[:30]], over=False)
    assert decide(study(DecayCurveStopping()), low, others).should_stop
    assert not decide(study(DecayCurveStopping()), high, others).should_stop


def test_best_of_a_family_of_noisy_curves_survives() -> None:
    """spec/tuning#early-stopping: early stopping. Hardly any that would have become the best is stopped, most
    of the others are."""
    draw = random.Random(7)

    def one() -> list[float]:
        values = rising(draw.uniform(0.5, 0.95), draw.uniform(3, 20))
        return noisy(values, draw.randrange(10**6))

    lost = winners = stopped = losers = 0
    for _ in range(100):
        others = [curve(i, one()) for i in range(1, 13)]
        best = max(other.measurements[-1].value("m") or 0.0 for other in others)
        values = one()
        halted = any(
            decide(
                study(DecayCurveStopping()), curve(99, values[:step], over=False), others
            ).should_stop
            for step in (10, 20, 30, 40)
        )
        if values[-1] > best + 0.02:
            winners, lost = winners + 1, lost + halted
        elif values[-1] < best - 0.05:
            losers, stopped = losers + 1, stopped + halted
    assert winners >= 5
    assert lost <= 1
    assert stopped > 0.7 * losers
