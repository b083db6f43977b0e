"""The Gaussian process bandit: quality of suggestions, few repeats and reproducibility
(spec/tuning#reproducible).

The result for one seed depends on floating-point rounding, and so on the processor (`OPENBLAS_CORETYPE`).
Each property must hold for a share of the seeds. A test fails if its number of successes cannot be chance
(docs/adr/0018).
"""

from collections.abc import Callable
from functools import cache
from math import comb
from statistics import median

import numpy as np
import pytest
from msgspec.structs import replace

from tests.contract.studies.parameter_trees import (
    LISTED,
    LOSS,
    MIXED,
    best,
    bowl,
    cube,
    double,
    finished_trial,
    mixed_loss,
    pending,
    play,
)
from trainshed.core.study.progress import optimal_trials
from trainshed.core.study.records import Measurement, StudyUid, Trial, TrialState
from trainshed.core.study.spec import (
    Algorithm,
    Goal,
    Metric,
    Parameter,
    ParameterType,
    Scale,
    StudySpec,
    Value,
)
from trainshed.studies.gp.bandit import GaussianProcessBandit, outlook
from trainshed.studies.port import TrialData, trial_data
from trainshed.studies.random_search import RandomSearch

pytestmark = pytest.mark.numerical
BANDIT = GaussianProcessBandit()
FLAT = StudySpec(cube(4), (LOSS,))
TREE = StudySpec(MIXED, (LOSS,))

_CHANCE = 1e-6
"""Probability that a test fails although its property holds."""


def min_successes(seeds: int, share: float) -> int:
    """Return the smallest number of successful seeds that is plausible.

    If the property holds for at least the given share of seeds, fewer successes have a probability below one
    in a million.
    """
    below = 0.0
    for kept in range(seeds + 1):
        below += comb(seeds, kept) * share**kept * (1.0 - share) ** (seeds - kept)
        if below >= _CHANCE:
            return kept
    return seeds


def check_share(holds: Callable[[int], bool], *, share: float, seeds: int) -> None:
    """Fail unless the property holds for enough of the seeds 0, 1, ….

    The check ends as soon as enough seeds succeeded, so it is fast for properties that mostly hold.
    """
    enough = min_successes(seeds, share)
    assert enough > 0, "too few seeds: any number of failures could be chance"
    kept = 0
    for seed in range(seeds):
        kept += holds(seed)
        if kept == enough:
            return
    raise AssertionError(f"{kept} of {seeds} seeds keep it; {enough} would, if {share:.0%} of all do")


def test_bandit_algorithm_is_far_better_than_random_search() -> None:
    """spec/tuning#measurements: the default algorithm is Bayesian. Its loss must be below a tenth of random
    search. A parameter tree also covers the case without conditions."""
    random = median(best(play(RandomSearch(), TREE, mixed_loss, 30, seed)) for seed in range(9))
    check_share(
        lambda seed: best(play(BANDIT, TREE, mixed_loss, 30, seed)) < 0.1 * random, share=0.8, seeds=10
    )


@cache
def play_trials(count: int) -> list[TrialData]:
    return play(BANDIT, FLAT, bowl, count)


def test_maximizing_a_metric_gives_the_suggestions_of_minimizing_the_negated_metric() -> None:
    up = StudySpec(FLAT.parameters, (Metric("loss", Goal.MAXIMIZE),))
    trials = play_trials(12)
    flipped = [
        finished_trial(trial.number, trial.parameters, -bowl(dict(trial.parameters))) for trial in trials
    ]
    assert BANDIT.suggest(up, flipped, 1, 7) == BANDIT.suggest(FLAT, trials, 1, 7)


def test_different_seeds_give_different_suggestions() -> None:
    assert BANDIT.suggest(FLAT, (), 3, 7) != BANDIT.suggest(FLAT, (), 3, 8)


@pytest.mark.parametrize("known", [0, 12])
def test_suggestions_for_parallel_trials_have_a_minimum_distance(known: int) -> None:
    """spec/tuning#trials: eight suggestions for parallel trials have a minimum distance."""

    def apart(seed: int) -> bool:
        points = BANDIT.suggest(FLAT, play_trials(known), 8, seed).parameters
        places = np.array([[float(value) for _, value in point] for point in points])
        gaps = np.abs(places[:, None] - places[None]).max(axis=2)[np.triu_indices(8, 1)]
        return bool(gaps.min() > 1e-3)

    check_share(apart, share=0.9, seeds=10)


def test_suggestions_in_a_space_of_integer_parameters_are_not_repeated() -> None:
    spec = StudySpec(
        (Parameter("n", ParameterType.INTEGER, 1, 3000), Parameter("m", ParameterType.INTEGER, 1, 3)), (LOSS,)
    )

    def holds(seed: int) -> bool:
        trials = play(
            BANDIT, spec, lambda values: abs(float(values["n"]) - 777) + float(values["m"]), 25, seed
        )
        assert len({trial.parameters for trial in trials}) == 25
        return best(trials) < 20

    check_share(holds, share=0.8, seeds=10)


def test_bandit_algorithm_avoids_regions_with_infeasible_trials() -> None:
    """spec/tuning#trials: infeasible trials reduce suggestions in their region."""

    def half(values: dict[str, Value]) -> float | None:
        return None if float(values["x0"]) < 0.0 else bowl(values)

    def holds(seed: int) -> bool:
        trials = play(BANDIT, StudySpec(cube(2), (LOSS,)), half, 30, seed)
        failed = [trial.state is TrialState.INFEASIBLE for trial in trials]
        return sum(failed[15:]) <= 3 and best(trials) < 0.05

    check_share(holds, share=0.8, seeds=10)


def test_bandit_algorithm_covers_the_pareto_front_of_several_objectives() -> None:
    """spec/tuning#objectives: the trials cover the whole Pareto front instead of one corner."""
    spec = StudySpec(cube(2, 0.0, 1.0), (Metric("near", Goal.MINIMIZE), Metric("far", Goal.MAXIMIZE)))

    def holds(seed: int) -> bool:
        trials: list[Trial] = []
        for number in range(1, 21):
            (point,) = BANDIT.suggest(spec, [*map(trial_data, trials)], 1, seed).parameters
            x, y = (float(value) for _, value in point)
            final = Measurement((("near", x * x + y * y), ("far", -((x - 1) ** 2) - y * y)))
            trials.append(Trial(StudyUid(1), number, TrialState.SUCCEEDED, point, created=0, final=final))
        front = optimal_trials(spec, trials)
        nears = sorted(float(trial.final.value("near") or 0.0) for trial in front if trial.final is not None)
        return len(front) >= 8 and nears[0] < 0.05 and nears[-1] > 0.8

    check_share(holds, share=0.8, seeds=10)


RATE = StudySpec((double("rate", 1e-4, 1.0, Scale.LOG),), (LOSS,))
RANDOM = replace(RATE, algorithm=Algorithm.RANDOM_SEARCH)


def rates(*tried: float) -> list[TrialData]:
    """Return trials that measure the distance of their rate from 1e-3, in powers of ten."""
    away = [abs(np.log10(rate) + 3.0) for rate in tried]
    return [finished_trial(n, (("rate", tried[n]),), away[n]) for n in range(len(tried))]


def test_predicted_curve_of_a_study_is_less_certain_far_from_finished_trials() -> None:
    trials = rates(1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
    drawn = outlook(RATE, trials, ("rate",))
    (axis,) = drawn.axes
    steps = np.diff(np.log([float(place) for place in axis.values]))
    assert axis.is_log and (axis.values[0], axis.values[-1]) == (1e-4, 1.0)
    assert steps.max() == pytest.approx(steps.min())
    measured = [(dict(t.parameters)["rate"], best([t])) for t in trials]
    assert drawn.points == tuple(map(pytest.approx, measured))
    low, middle, high = map(np.array, (drawn.low, drawn.expected, drawn.high))
    assert (low <= middle).all() and (middle <= high).all()
    for rate, value in drawn.points:
        near = int(np.argmin(np.abs(np.log(np.array(axis.values) / rate))))
        assert middle[near] == pytest.approx(value, abs=0.2)
        assert high[near] - low[near] < 0.2 * (high[-1] - low[-1])


def test_predicted_curve_of_a_study_fixes_undrawn_parameters_at_the_best_trial() -> None:
    trials = play(RandomSearch(), TREE, mixed_loss, 40)
    (top,) = (trial for trial in trials if best([trial]) == best(trials))
    drawn = outlook(TREE, trials, ("kind", "rate"))
    kinds, many = drawn.axes
    assert kinds.values == ("tree", "net", "line") and not kinds.is_log
    assert (drawn.best, drawn.others) == (top.number, dict(top.parameters[2:]))
    rows = np.array(drawn.expected).reshape(3, len(many.values))
    assert rows[1].min() < rows[2].min(), "a net is better than a line"


@pytest.mark.parametrize(
    ("spec", "trials", "parameter", "words"),
    [
        (RANDOM, rates(1e-4, 1e-3, 1e-2), "rate", "no model"),
        (RATE, rates(1e-4, 1e-4, 1e-2), "rate", "measured 1 so far"),
        (RATE, [pending(1, (("rate", 0.1),))], "rate", "measured 0 so far"),
        (
            StudySpec(LISTED, (LOSS,)),
            [finished_trial(n, (("kind", "a"), ("size", 1), ("alone", "only")), n) for n in (1, 2, 3)],
            "width",
            "best trial, 1",
        ),
    ],
)
def test_study_without_a_predicted_curve_returns_the_reason(
    spec: StudySpec, trials: list[TrialData], parameter: str, words: str
) -> None:
    assert words in outlook(spec, trials, (parameter,)).reason


def test_predicted_curve_of_a_study_shows_only_trials_within_the_axes() -> None:
    """The axis shows only 100 of the 1,000 categories. A trial value outside the bounds of a parameter is
    drawn at the bound."""
    many = Parameter("name", ParameterType.CATEGORICAL, categories=tuple(map(str, range(1000))))
    spec = StudySpec((many, double("x", 0.0, 1.0)), (LOSS,))
    tried = (("0", 9.0), ("1", 0.5), ("nobody", 0.5), ("999", 0.25))
    trials = [finished_trial(n, (("name", name), ("x", x)), n) for n, (name, x) in enumerate(tried)]
    drawn = outlook(spec, trials, ("name", "x"))
    assert len(drawn.axes[0].values) == 100
    assert drawn.points == (("0", 1.0, 0), ("999", 0.25, 3))


def test_predicted_curve_of_a_study_is_finite_for_the_largest_floats() -> None:
    values = (-1e308, 1e308, 0.0, 1.0)
    trials = [finished_trial(n, (("rate", 10.0**-n),), value) for n, value in enumerate(values)]
    assert np.isfinite(np.array(outlook(RATE, trials, ("rate",)).expected)).all()
