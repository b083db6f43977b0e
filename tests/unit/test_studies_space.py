"""Encoding of parameter trees as numbers, and back (spec/tuning#parameters, facts/tuning#vertex).

Grid search proposes every grid point once (facts/tuning#ml).
"""

import math
from itertools import islice, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.studies.parameter_trees import LISTED, LOSS, cube, finished_trial, legal, pending, trees
from trainshed.core.study.records import Parameters
from trainshed.core.study.spec import Parameter, ParameterType, Scale, StudySpec
from trainshed.studies.port import TrialData
from trainshed.studies.random_search import STEPS, GridSearch, grid
from trainshed.studies.space import Space, starting_point


@given(trees(), st.integers(0, 2**32))
def test_decoded_parameter_points_are_valid_and_encode_to_the_original_point(
    tree: tuple[Parameter, ...], seed: int
) -> None:
    """spec/tuning#parameters: every type, scale and condition, and the starting point of a study. Encoding a
    decoded point gives the same point."""
    space, spec = Space(tree), StudySpec(tree, (LOSS,))
    places = space.place(np.random.default_rng(seed).random((8, space.width)))
    starts = [starting_point(space, number, seed) for number in (1, 2, 3 + seed % 500)]
    codes = space.snap(np.vstack([places, *starts]))
    points = [space.decode(row) for row in codes]
    assert all(legal(spec, point) for point in points), points
    again = space.encode(points)
    assert np.allclose(again, codes, atol=1e-6, equal_nan=True)
    for point, back in zip(
        points, [space.decode(row) for row in space.snap(space.genotypes(again))], strict=True
    ):
        assert [name for name, _ in back] == [name for name, _ in point]
        for (_, value), (_, returned) in zip(point, back, strict=True):
            if isinstance(value, float) and isinstance(returned, float):
                assert math.isclose(returned, value, rel_tol=1e-6, abs_tol=1e-6)
            else:
                assert returned == value


@given(trees(), st.integers(0, 2**32))
def test_rounding_a_point_to_valid_parameters_is_idempotent(tree: tuple[Parameter, ...], seed: int) -> None:
    space = Space(tree)
    wild = np.random.default_rng(seed).normal(0.5, 1.0, (4, space.width))
    once = space.snap(wild)
    assert np.allclose(space.snap(space.genotypes(once)), once, atol=1e-9, equal_nan=True)
    assert np.isfinite(space.embed(once)).all()


def test_first_trial_uses_the_parameter_defaults() -> None:
    """facts/tuning#vertex: a parameter without defaultValue starts in the middle of its range."""
    tree = (
        Parameter("a", ParameterType.DOUBLE, 0.0, 10.0, default=2.5),
        Parameter("b", ParameterType.DOUBLE, 0.0, 10.0),
        Parameter("c", ParameterType.CATEGORICAL, categories=("x", "y"), default="y"),
    )
    space = Space(tree)
    first = space.decode(space.snap(starting_point(space, 1, 0)[None, :])[0])
    assert first == (("a", 2.5), ("b", 5.0), ("c", "y"))


COUNTABLE = StudySpec(LISTED, (LOSS,))


def exhaust_grid(spec: StudySpec, trials: list[TrialData]) -> list[Parameters]:
    """Return all proposals until the grid is exhausted."""
    points: list[Parameters] = []
    while True:
        proposals = GridSearch().suggest(spec, trials, 1, 0)
        if proposals.exhausted:
            assert proposals.parameters == ()
            return points
        points.append(proposals.parameters[0])
        trials = [*trials, finished_trial(len(trials) + 1, points[-1], 0.0)]


def test_grid_search_skips_existing_trials() -> None:
    """Grid points of manually created and pending trials are not proposed. All other grid points are
    proposed."""
    everything = exhaust_grid(COUNTABLE, [])
    trials = [finished_trial(1, everything[11], 1.0), finished_trial(3, (("kind", "z"),), 1.0)]
    points = exhaust_grid(COUNTABLE, [*trials, pending(2, everything[3])])
    assert len(points) == len(set(points)) == 16
    assert set(points) | {everything[11], everything[3]} == set(everything)


@settings(max_examples=30)
@given(trees())
def test_grid_contains_each_valid_point_once(tree: tuple[Parameter, ...]) -> None:
    spec, points = StudySpec(tree, (LOSS,)), list(islice(grid(tree), 300))
    assert all(legal(spec, point) for point in points)
    if all(parameter.low != parameter.high for parameter in tree if parameter.type is ParameterType.DOUBLE):
        assert len(set(points)) == len(points)


def test_grid_of_a_double_parameter_has_even_steps_on_the_parameter_scale() -> None:
    spec = StudySpec((Parameter("rate", ParameterType.DOUBLE, 1e-10, 1.0, scale=Scale.LOG),), (LOSS,))
    points = exhaust_grid(spec, [])
    assert len(points) == STEPS
    values = [float(point[0][1]) for point in points]
    assert values[0] == 1e-10
    assert values[-1] == 1.0
    assert all(math.isclose(after / before, 10.0) for before, after in pairwise(values))


def test_huge_grid_is_generated_lazily() -> None:
    """The grid has 11^900 points. Only the requested points are created."""
    spec = StudySpec((*cube(999), Parameter("seed", ParameterType.INTEGER, 0, 2**40)), (LOSS,))
    trials = [finished_trial(number, (("x0", float(number)),), 0.0) for number in range(1, 2001)]
    (point,) = GridSearch().suggest(spec, trials, 1, 0).parameters
    assert legal(spec, point)
    assert point[-1] == ("seed", 0)


def test_double_parameter_with_equal_bounds_has_exactly_one_grid_point() -> None:
    spec = StudySpec((Parameter("x", ParameterType.DOUBLE, 2.0, 2.0),), (LOSS,))
    assert exhaust_grid(spec, []) == [(("x", 2.0),)]
