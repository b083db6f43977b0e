"""The parts of the GP bandit: warping, the process and its gradients, trust region, search, what is shown."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.studies.trees import LOSS, MIXED, cube, over, pending
from trainshed.core.study.spec import Goal, Metric, StudySpec
from trainshed.studies.gp.acquisition import (
    SafeScore,
    Safety,
    Score,
    TrustRegion,
    UpperBound,
    by_differences,
)
from trainshed.studies.gp.belief import warp
from trainshed.studies.gp.process import Data, Hyperparameters, Posterior
from trainshed.studies.gp.search import Search
from trainshed.studies.gp.selection import MOST, choose
from trainshed.studies.gp.success import Shape, Success
from trainshed.studies.routines import Array
from trainshed.studies.space import Space

pytestmark = pytest.mark.numerical
SPACE = Space(MIXED)


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


@pytest.mark.parametrize("kind", ["bound", "bound beside pending"])
def test_gradients_are_those_of_the_values(kind: str) -> None:
    hyper = some_hyper()
    labels = np.random.default_rng(1).normal(0.0, 0.3, 15)
    data = Data(some_points(15), labels, SPACE.groups, SPACE.width)
    known, expected = Posterior(data, hyper), Posterior(data, hyper, some_points(3, seed=9))
    scores: dict[str, Score] = {
        "bound": UpperBound(known, known, 1.8),
        "bound beside pending": UpperBound(known, expected, 1.8),
    }
    for point in some_points(5, seed=4) + 0.01:
        value, gradient = scores[kind].value_and_gradient(point)
        measured, slope = by_differences(scores[kind], point)
        assert value == pytest.approx(measured)
        assert np.allclose(gradient, slope, atol=1e-5)


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
    best_point = Search(SPACE, Hill(), everywhere).maximize(none, np.random.default_rng(0))
    assert (np.diff(best_point.scores) <= 0).all()
    assert np.allclose(best_point.codes[0], SPACE.snap(TOP[None, :])[0], atol=1e-3, equal_nan=True)


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
