"""Grid search: all points, each once (facts/tuning#ml, facts/tuning#vertex)."""

import math
from itertools import pairwise

from hypothesis import given, settings

from tests.contract.studies.trees import LISTED, LOSS, cube, legal, over, pending, trees
from trainshed.core.study.records import Parameters
from trainshed.core.study.spec import Parameter, ParameterType, Scale, StudySpec
from trainshed.studies.port import Seen
from trainshed.studies.random_search import STEPS, Grid, GridSearch

COUNTABLE = StudySpec(LISTED, (LOSS,))


def run_out(spec: StudySpec, trials: list[Seen]) -> list[Parameters]:
    """What is proposed until the grid is exhausted."""
    points: list[Parameters] = []
    while True:
        proposals = GridSearch().suggest(spec, trials, 1, 0)
        if proposals.exhausted:
            assert proposals.parameters == ()
            return points
        points.append(proposals.parameters[0])
        trials = [*trials, over(len(trials) + 1, points[-1], 0.0)]


def test_points_that_others_tried_are_left_out() -> None:
    """Tried by hand or pending, from another place of the grid: not proposed, and none is missed for it."""
    everything = run_out(COUNTABLE, [])
    trials = [
        over(1, everything[11], 1.0),
        pending(2, everything[3]),
        over(3, (("kind", "z"),), 1.0),
    ]
    points = run_out(COUNTABLE, trials)
    assert len(points) == len(set(points)) == 16
    assert set(points) | {everything[11], everything[3]} == set(everything)


@settings(max_examples=30, deadline=None)
@given(trees())
def test_places_are_points_and_points_have_one_place(tree: tuple[Parameter, ...]) -> None:
    grid, spec = Grid(tree), StudySpec(tree, (LOSS,))
    places = range(grid.size) if grid.size <= 300 else range(0, grid.size, grid.size // 300)
    points = [grid.point(place) for place in places]
    assert all(legal(spec, point) for point in points)
    if all(
        parameter.low != parameter.high
        for parameter in tree
        if parameter.type is ParameterType.DOUBLE
    ):
        assert len(set(points)) == len(points)


def test_a_double_is_ten_even_steps_on_its_scale() -> None:
    spec = StudySpec(
        (Parameter("rate", ParameterType.DOUBLE, 1e-10, 1.0, scale=Scale.LOG),), (LOSS,)
    )
    points = run_out(spec, [])
    assert len(points) == STEPS
    values = [float(point[0][1]) for point in points]
    assert values[0] == 1e-10
    assert values[-1] == 1.0
    assert all(math.isclose(after / before, 10.0) for before, after in pairwise(values))


def test_a_huge_grid_costs_nothing() -> None:
    """11^40 points: a proposal is made from its place, not by walking there."""
    spec = StudySpec((*cube(40), Parameter("seed", ParameterType.INTEGER, 0, 2**40)), (LOSS,))
    trials = [over(number, (("x0", float(number)),), 0.0) for number in range(1, 2001)]
    (point,) = GridSearch().suggest(spec, trials, 1, 0).parameters
    assert legal(spec, point)
    assert point[-1] == ("seed", 2000)


def test_a_single_valued_double_is_one_point() -> None:
    spec = StudySpec((Parameter("x", ParameterType.DOUBLE, 2.0, 2.0),), (LOSS,))
    assert run_out(spec, []) == [(("x", 2.0),)]
