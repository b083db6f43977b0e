"""Parts of the Gaussian process bandit: warping, gradients, trust region, search and selection of trials."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.studies.parameter_trees import LOSS, MIXED, cube, finished_trial, pending
from trainshed.core.study.spec import StudySpec
from trainshed.studies.gp.acquisition import LikelyScore, TrustRegion, UpperBound, by_differences
from trainshed.studies.gp.belief import warp
from trainshed.studies.gp.process import Data, Hyperparameters, Posterior
from trainshed.studies.gp.search import Search
from trainshed.studies.gp.selection import MAX_TRIALS, choose
from trainshed.studies.routines import Array, minimize_bounded, whitening
from trainshed.studies.space import Space

pytestmark = pytest.mark.numerical
SPACE = Space(MIXED)


def some_points(count: int, seed: int = 0) -> Array:
    shares = np.random.default_rng(seed).random((count, SPACE.width))
    return SPACE.embed(SPACE.snap(SPACE.place(shares)))


HYPER = Hyperparameters(0.06, 1e-6, np.full(SPACE.width, 0.4), 0.04, np.full(SPACE.width, 0.2))
LABELS = np.random.default_rng(1).normal(0.0, 0.3, 15)
DATA = Data(some_points(15), LABELS, SPACE.groups, SPACE.width)
KNOWN = Posterior(DATA, HYPER)


def test_whitening_matrix_is_the_inverse_cholesky_factor() -> None:
    matrix = np.cov(np.random.default_rng(0).normal(size=(90, 300)))
    whiten = whitening(matrix)
    assert whiten is not None and np.allclose(whiten @ np.linalg.cholesky(matrix), np.eye(90))
    assert whitening(-matrix) is None


def valley(at: Array) -> tuple[float, Array]:
    rise, away = at[1:] - at[:-1] ** 2, 1.0 - at[:-1]
    slope = np.append(-400.0 * at[:-1] * rise - 2.0 * away, 0.0) + np.append(0.0, 200.0 * rise)
    return float((100.0 * rise**2 + away**2).sum()), slope


def test_bounded_minimization_reaches_the_minimum() -> None:
    """Rosenbrock function with its minimum inside, at the border of, and outside the box (reference:
    SciPy)."""
    for top, least in ((2.0, 0.0), (1.0, 0.0), (0.5, 1.66787512)):
        bounds, start = np.array([[-2.0] * 4, [top] * 4]), np.array([0.3, -0.5, 0.1, 0.4])
        _, reached = minimize_bounded(valley, start, *bounds, evaluations=200)
        assert reached == pytest.approx(least, abs=1e-6)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60))
def test_warped_metric_values_keep_the_order_of_the_original_values(values: list[float]) -> None:
    """The warping of the paper is monotone, with its best value at 0.5 and its worst at -0.5."""
    raw = np.array(values)
    labels = warp(raw)
    assert np.isfinite(labels).all()
    assert (np.diff(labels[np.argsort(raw, kind="stable")]) >= 0).all()
    assert labels.max() <= 0.5
    assert labels.min() >= -0.5 - 1e-12


def test_score_gradients_match_finite_differences() -> None:
    points = some_points(30)
    succeeded = np.where(points[:, 3] + points[:, 4] > 0.8, 0.5, -0.5)
    success = Posterior(Data(points, succeeded, SPACE.groups, SPACE.width), HYPER)
    bound = UpperBound(KNOWN, KNOWN, 1.8)
    beside_pending = UpperBound(KNOWN, Posterior(DATA, HYPER, some_points(3, seed=9)), 1.8)
    for score in (bound, beside_pending, LikelyScore(bound, success, -1.0)):
        for point in some_points(5, seed=4) + 0.01:
            value, gradient = score.value_and_gradient(point)
            measured, slope = by_differences(score, point)
            assert value == pytest.approx(measured)
            assert np.allclose(gradient, slope, atol=1e-5)


TOP = np.array([1.0, 0.3125, 0.5, 1.0, 1.0, 0.72])
"""A genotype of `MIXED`: kind "net", 3 layers, 256 units, and one point of rate and momentum."""


class Hill:
    """A synthetic score over `MIXED` with its maximum at `TOP`."""

    def values(self, points: Array) -> Array:
        top = SPACE.embed(SPACE.snap(TOP[None, :]))
        return -((points - top) ** 2).sum(axis=1)

    def value_and_gradient(self, point: Array) -> tuple[float, Array]:
        return by_differences(self, point)


def test_acquisition_search_finds_the_maximum_in_a_space_of_mixed_parameter_types() -> None:
    everywhere = TrustRegion(np.empty((0, 5)), 1.0)
    none = np.empty((0, SPACE.width))
    best_point = Search(SPACE, Hill(), everywhere).maximize(none, np.random.default_rng(0))
    assert (np.diff(best_point.scores) <= 0).all()
    assert np.allclose(best_point.codes[0], SPACE.snap(TOP[None, :])[0], atol=1e-3, equal_nan=True)


def test_model_of_a_long_study_uses_only_best_newest_and_sampled_trials() -> None:
    """The model omits trials to limit its cost. It keeps the best and the newest trials, and trials of every
    period."""
    spec = StudySpec(cube(1), (LOSS,))
    trials = [
        finished_trial(number, (("x0", 0.0),), float((number * 7919) % 20000)) for number in range(1, 20001)
    ]
    shown = choose(spec, [*trials, *(pending(number, ()) for number in range(20001, 20201))])
    numbers = [trial.number for trial in shown.done]
    assert len(numbers) == MAX_TRIALS
    assert len(shown.values) == 20000
    assert numbers[-1] == 20000
    assert numbers[0] < 500
    losses = sorted(trial.final.metrics[0][1] for trial in shown.done if trial.final is not None)
    assert losses[:100] == [float(value) for value in range(100)]
    assert shown.pending[-1].number == 20200
