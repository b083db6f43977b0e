"""The parts of the GP bandit: warping, the process and its gradients, trust region, search, what is shown."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.studies.trees import LOSS, MIXED, cube, over, pending
from trainshed.core.study.spec import Goal, Metric, Parameter, ParameterType, StudySpec
from trainshed.studies.gp.acquisition import (
    Exploration,
    SafeScore,
    Safety,
    Score,
    TrustRegion,
    UpperBound,
    by_differences,
    scalarized,
    trust_radius,
)
from trainshed.studies.gp.process import LOW_NOISE, Data, Hyperparameters, Posterior, Prior, fit
from trainshed.studies.gp.search import Effort, Search
from trainshed.studies.gp.selection import MOST, choose
from trainshed.studies.gp.success import Shape, Success, likeliest
from trainshed.studies.gp.warping import margins, warp
from trainshed.studies.routines import Array
from trainshed.studies.space import Space

pytestmark = pytest.mark.numerical
SPACE = Space(MIXED)
MIXED_PAIR = (
    Parameter("kind", ParameterType.CATEGORICAL, categories=("a", "b")),
    *cube(4, 0.0, 1.0),
)


def some_points(count: int, space: Space = SPACE, seed: int = 0) -> Array:
    shares = np.random.default_rng(seed).random((count, space.width))
    return space.embed(space.snap(space.place(shares)))


def some_hyper(noise: float = 1e-6, width: int = SPACE.width) -> Hyperparameters:
    return Hyperparameters(0.06, noise, np.full(width, 0.4), 0.04, np.full(width, 0.2))


def some_posterior(noise: float = 1e-6) -> Posterior:
    points = some_points(15)
    labels = np.random.default_rng(1).normal(0.0, 0.3, 15)
    return Posterior(Data(points, labels, SPACE.groups, SPACE.width), some_hyper(noise))


@settings(max_examples=200)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60))
def test_warping_keeps_the_order(values: list[float]) -> None:
    """The paper's warping: monotone, best at 0.5 and worst at -0.5."""
    raw = np.array(values)
    labels = warp(raw)
    assert np.isfinite(labels).all()
    assert (np.diff(labels[np.argsort(raw, kind="stable")]) >= 0).all()
    assert labels.max() <= 0.5
    assert labels.min() >= -0.5 - 1e-12


def test_an_outlier_does_not_set_the_scale() -> None:
    labels = warp(np.array([-1e30, 1.0, 2.0, 3.0, 4.0]))
    assert labels[-1] - labels[-2] > 0.1


def test_penalties_do_not_set_the_scale() -> None:
    """Who reports 1e9 for whatever failed is still told which of the others is better."""
    labels = warp(np.array([-1e9] * 4 + [1.0, 2.0, 3.0, 4.0, 5.0]))
    assert labels[-1] - labels[-2] > 0.1
    assert np.ptp(labels[:4]) == 0.0


def test_a_crowd_near_the_best_does_not_hide_the_rest() -> None:
    """Six in ten trials lie all but at the best: the others still keep their distances, not only their
    ranks."""
    labels = warp(np.concatenate([np.zeros(60), -1e-3 * np.ones(5), -np.array([*range(1, 36)])]))
    near, far = labels[64] - labels[65], labels[65] - labels[69]
    assert far > 3.0 * near


def test_labels_of_safety_have_the_thresholds_sign() -> None:
    labels = margins(np.array([-5.0, 2.9, 3.0, 3.1, 400.0]), 3.0)
    assert np.sign(labels).tolist() == [-1, -1, 0, 1, 1]
    assert margins(np.array([3.0, 3.0]), 3.0).tolist() == [0.0, 0.0]


def test_the_mean_goes_through_what_was_observed() -> None:
    points = some_points(15)
    mean, deviation = some_posterior(noise=1e-10).predict(points)
    labels = np.random.default_rng(1).normal(0.0, 0.3, 15)
    assert np.allclose(mean, labels, atol=1e-3)
    assert (deviation < 1e-3).all()
    assert np.allclose(some_posterior().predict(points + 1e3)[1], np.sqrt(0.1))


def test_pending_trials_take_away_variance_and_leave_the_mean() -> None:
    """spec/tuning#trials, the paper: pending trials are observed ones whose value nobody knows."""
    known, extra = some_posterior(), some_points(3, seed=9)
    data = Data(some_points(15), np.zeros(15), SPACE.groups, SPACE.width)
    expected = Posterior(data, some_hyper(), extra)
    bound = UpperBound(known, expected, 1.8)
    assert np.allclose(bound.values(extra), known.predict(extra)[0], atol=0.01)
    assert (bound.values(extra) < UpperBound(known, known, 1.8).values(extra) - 0.01).all()


@pytest.mark.parametrize("kind", ["bound", "bound beside pending", "exploration"])
@pytest.mark.parametrize("is_smooth", [False, True])
def test_gradients_are_those_of_the_values(kind: str, is_smooth: bool) -> None:
    hyper = replace(some_hyper(1e-4), main=0.0, is_smooth=True) if is_smooth else some_hyper()
    labels = np.random.default_rng(1).normal(0.0, 0.3, 15)
    data = Data(some_points(15), labels, SPACE.groups, SPACE.width)
    known, expected = Posterior(data, hyper), Posterior(data, hyper, some_points(3, seed=9))
    scores: dict[str, Score] = {
        "bound": UpperBound(known, known, 1.8),
        "bound beside pending": UpperBound(known, expected, 1.8),
        "exploration": Exploration(known, expected, 0.4, 0.5),
    }
    for point in some_points(5, seed=4) + 0.01:
        value, gradient = scores[kind].value_and_gradient(point)
        measured, slope = by_differences(scores[kind], point)
        assert value == pytest.approx(measured)
        assert np.allclose(gradient, slope, atol=1e-5)


def test_the_fit_finds_which_dimension_matters() -> None:
    space = Space(cube(3, 0.0, 1.0))
    points = some_points(40, space)
    labels = np.sin(6.0 * points[:, 1]) / 2.0
    hyper = fit(Data(points, labels, space.groups, 3), LOW_NOISE, 60)
    assert hyper.main_lengths[1] * 20.0 < min(hyper.main_lengths[0], hyper.main_lengths[2])
    assert hyper.noise < 1e-4


def test_main_effects_are_found_under_waves() -> None:
    """A bowl and five waves in every parameter: 60 points tell of 200 others, which the joint part alone
    cannot."""
    space = Space(cube(3, 0.0, 1.0))
    points, others = some_points(60, space), some_points(200, space, seed=3)

    def bumps(at: Array) -> Array:
        away = at - 0.4
        return (-(away**2) - 0.1 * np.cos(10.0 * np.pi * away)).sum(axis=1)

    data = Data(points, bumps(points), space.groups, 3)
    hyper = fit(data, LOW_NOISE, 40)
    mean, _ = Posterior(data, hyper).predict(others)
    assert np.corrcoef(mean, bumps(others))[0, 1] > 0.95
    alone = replace(LOW_NOISE, main=Prior(1e-5, 1.1e-5, 1e-5))
    joint, _ = Posterior(data, fit(data, alone, 40)).predict(others)
    assert np.corrcoef(joint, bumps(others))[0, 1] < 0.8


def test_the_border_of_a_region_that_fails_is_a_plane() -> None:
    """Sixty trials tell of 400 other points which of them fail, but for those close to the border."""
    draw = np.random.default_rng(0)
    points, others = draw.random((60, 4)), draw.random((400, 4))
    across = np.array([1.0, -2.0, 0.5, 0.3])
    shape = likeliest(points, points @ across > 0.0, 4)
    latent, _ = Success(points, points @ across > 0.0, 4, shape).predict(others)
    assert ((latent > 0.0) == (others @ across > 0.0)).mean() > 0.93


def test_failures_by_chance_frighten_nobody_away() -> None:
    """One trial in ten fails wherever it is: every point is worth what it promises."""
    draw = np.random.default_rng(1)
    points, succeeded = draw.random((80, 3)), np.arange(80) % 10 > 0
    model = Success(points, succeeded, 3, likeliest(points, succeeded, 3))
    assert Safety(model, 0.5, 1.0).weights(draw.random((200, 3))).min() > 0.9


def test_gradients_of_a_score_weighed_by_success() -> None:
    points = some_points(30)
    succeeded = points[:, 3] + points[:, 4] > 0.8
    known = some_posterior()
    for shape in (Shape(10.0, 4.0, 0.0, 1.0), Shape(10.0, 1.0, 1.0, 0.04)):
        safety = Safety(Success(points, succeeded, SPACE.width, shape), 0.5, 1.0)
        score = SafeScore(UpperBound(known, known, 1.8), [safety], -1.0)
        for point in some_points(5, seed=4) + 0.01:
            value, gradient = score.value_and_gradient(point)
            measured, slope = by_differences(score, point)
            assert value == pytest.approx(measured)
            assert np.allclose(gradient, slope, atol=1e-5)


def test_a_category_counts_wherever_the_numbers_are() -> None:
    """What separates two categories is learnt once, not anew in every corner of the numbers."""
    space = Space(MIXED_PAIR)
    shares = np.random.default_rng(5).random((24, space.width))
    codes = space.snap(space.place(shares))
    numbers = ((codes[:, 1:] - 0.3) ** 2).sum(axis=1)
    data = Data(space.embed(codes), -numbers - 0.1 * codes[:, 0], space.groups, space.width)
    model = Posterior(data, fit(data, LOW_NOISE, 40))
    first = space.snap(space.place(np.random.default_rng(6).random((50, space.width))))
    second = first.copy()
    first[:, 0], second[:, 0] = 0.0, 1.0
    gap = model.predict(space.embed(first))[0] - model.predict(space.embed(second))[0]
    assert np.abs(gap - 0.1).max() < 0.05


def test_the_fit_finds_noise() -> None:
    space = Space(cube(2, 0.0, 1.0))
    points = some_points(80, space)
    labels = points[:, 0] - 0.5 + np.random.default_rng(1).normal(0.0, 0.2, 80)
    hyper = fit(Data(points, labels, space.groups, 2), LOW_NOISE, 60)
    assert 0.02 < hyper.noise < 0.08


def test_trust_grows_with_the_trials_and_ends() -> None:
    radii = [trust_radius(trials, 4) for trials in (1, 10, 20, 25, 26)]
    assert radii == sorted(radii)
    assert radii[0] < 0.25
    assert radii[-1] == 1.0
    region = TrustRegion(np.array([[0.1, 0.1], [0.9, 0.9]]), 0.2)
    assert region.excess(np.array([[0.2, 0.25], [0.5, 0.9], [1.0, 0.7]])) == pytest.approx(
        [0, 0.2, 0]
    )
    low, high = region.box(np.array([0.95, 0.95]))
    assert low.tolist() == pytest.approx([0.7, 0.7])
    assert high.tolist() == [1.0, 1.0]


TOP = np.array([1.0, 0.3125, 0.5, 1.0, 1.0, 0.72])
"""A genotype of `MIXED`: kind "net", 3 layers, 256 units, one place of rate and momentum."""


class Hill:
    """A made score over `MIXED`, best at `TOP`."""

    def values(self, points: Array) -> Array:
        top = SPACE.embed(SPACE.snap(TOP[None, :]))
        return -((points - top) ** 2).sum(axis=1)

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        return by_differences(self, point)


def test_the_search_finds_the_top_of_a_mixed_space() -> None:
    everywhere = TrustRegion(np.empty((0, 5)), 1.0)
    none = np.empty((0, SPACE.width))
    found = Search(SPACE, Hill(), everywhere, Effort()).maximize(none, np.random.default_rng(0))
    assert (np.diff(found.scores) <= 0).all()
    assert np.allclose(found.codes[0], SPACE.snap(TOP[None, :])[0], atol=1e-3, equal_nan=True)


def test_the_search_stays_in_the_trust_region() -> None:
    space = Space(cube(2, 0.0, 1.0))
    points = np.array([[0.2, 0.2], [0.3, 0.3]])
    data = Data(points, np.array([0.0, 0.1]), space.groups, 2)
    known = Posterior(data, some_hyper(width=2))
    trust = TrustRegion(points, 0.1)
    search = Search(space, UpperBound(known, known, 1.8), trust, Effort())
    found = search.maximize(points, np.random.default_rng(0))
    assert trust.excess(found.codes[:1])[0] == pytest.approx(0.0, abs=1e-12)
    assert found.scores[0] > 0.0


def test_scalarized_directions_span_the_dominated_volume() -> None:
    """Zhang and Golovin 2020: what dominates another point is at least as good in every direction."""
    along = np.array([[0.6, 0.8], [0.8, 0.6]])
    values = scalarized(np.array([[1.0, 1.0], [2.0, 1.5], [-1.0, 5.0]]), along, np.zeros(2))
    assert (values[1] > values[0]).all()
    assert values[2].tolist() == [0.0, 0.0]


def test_a_long_study_shows_its_best_newest_and_a_spread() -> None:
    """Cost control: what is left out is neither the best, nor the newest, nor one end of the story."""
    spec = StudySpec(cube(1), (LOSS, Metric("gain", Goal.MAXIMIZE, safety=0.0)))
    trials = [
        over(number, (("x0", 0.0),), float((number * 7919) % 20000)) for number in range(1, 20001)
    ]
    shown = choose(spec, [*trials, *(pending(number, ()) for number in range(20001, 20201))])
    numbers = [trial.number for trial in shown.done]
    assert len(numbers) == MOST
    assert len(shown.values) == 20000
    assert numbers[-1] == 20000
    assert numbers[0] < 500
    losses = sorted(trial.final.metrics[0][1] for trial in shown.done if trial.final is not None)
    assert losses[:100] == [float(value) for value in range(100)]
    assert shown.pending[-1].number == 20200
