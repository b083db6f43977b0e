"""The parameter tree as numbers: scales, conditions, and the way back (spec/tuning#parameters,
facts/tuning#vertex)."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.studies.trees import LOSS, legal, trees
from trainshed.core.study.spec import Parameter, ParameterType, StudySpec
from trainshed.studies.space import Space, starting_point


@settings(max_examples=150, deadline=None)
@given(trees(), st.integers(0, 2**32))
def test_any_place_is_a_legal_point_and_comes_back(tree: tuple[Parameter, ...], seed: int) -> None:
    """spec/tuning#parameters: every type, scale and condition. Encoding what was decoded leads to the same
    point."""
    space, spec = Space(tree), StudySpec(tree, (LOSS,))
    codes = space.snap(space.place(np.random.default_rng(seed).random((4, space.width))))
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


@settings(max_examples=100, deadline=None)
@given(trees(), st.integers(0, 2**32))
def test_snapping_twice_changes_nothing(tree: tuple[Parameter, ...], seed: int) -> None:
    space = Space(tree)
    wild = np.random.default_rng(seed).normal(0.5, 1.0, (4, space.width))
    once = space.snap(wild)
    assert np.allclose(space.snap(space.genotypes(once)), once, atol=1e-9, equal_nan=True)
    assert np.isfinite(space.embed(once)).all()


@settings(max_examples=60, deadline=None)
@given(trees(), st.integers(1, 500), st.integers(0, 2**31))
def test_the_start_is_legal(tree: tuple[Parameter, ...], number: int, seed: int) -> None:
    space, spec = Space(tree), StudySpec(tree, (LOSS,))
    codes = space.snap(starting_point(space, number, seed)[None, :])
    assert legal(spec, space.decode(codes[0]))


def test_defaults_come_first() -> None:
    """facts/tuning#vertex: defaultValue; what has none starts in the middle."""
    tree = (
        Parameter("a", ParameterType.DOUBLE, 0.0, 10.0, default=2.5),
        Parameter("b", ParameterType.DOUBLE, 0.0, 10.0),
        Parameter("c", ParameterType.CATEGORICAL, categories=("x", "y"), default="y"),
    )
    space = Space(tree)
    first = space.decode(space.snap(starting_point(space, 1, 0)[None, :])[0])
    assert first == (("a", 2.5), ("b", 5.0), ("c", "y"))
