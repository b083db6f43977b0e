"""The parameter tree as numbers: scales, conditions, and the way back (spec/tuning#parameters,
facts/tuning#vertex)."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.studies.trees import LOSS, MIXED, double, legal, trees
from trainshed.core.study.spec import Parameter, ParameterType, Scale, StudySpec
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


def test_values_that_are_near_for_their_range_are_two_conditions() -> None:
    """spec/tuning#parameters: a child of 0 is none of 0.00001, although the list goes to 100,000."""
    values = (-1.0, 0.0, 1e-05, 100000.0)
    tree = (
        Parameter("size", ParameterType.DISCRETE, values=values),
        Parameter("only", ParameterType.DOUBLE, 0, 1, parent=0, when=(-1.0, 0.0)),
    )
    space = Space(tree)
    given = [((("size", value),) + (("only", 0.5),) * (value <= 0)) for value in values]
    assert [space.decode(row) for row in space.snap(space.genotypes(space.encode(given)))] == given


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


@pytest.mark.parametrize(
    ("scale", "middle"),
    [(Scale.LINEAR, 50.5), (Scale.LOG, 10.0), (Scale.REVERSE_LOG, 91.0)],
)
def test_scales_lay_out_the_range(scale: Scale, middle: float) -> None:
    """facts/tuning#ml: linear; log resolves the bottom, reverse log, its mirror image, the top of the
    range."""
    space = Space((double("x", 1.0, 100.0, scale),))
    ends = [space.decode(np.array([code]))[0][1] for code in (0.0, 0.5, 1.0)]
    assert ends[0] == 1.0
    assert ends[2] == 100.0
    assert ends[1] == pytest.approx(middle)
    assert space.encode([(("x", middle),)])[0, 0] == pytest.approx(0.5)


@pytest.mark.parametrize("scale", list(Scale))
def test_whole_numbers_are_drawn_evenly_on_their_scale(scale: Scale) -> None:
    space = Space((Parameter("n", ParameterType.INTEGER, 1, 4, scale=scale),))
    shares = (np.arange(4000)[:, None] + 0.5) / 4000
    drawn = [space.decode(row)[0][1] for row in space.snap(space.place(shares))]
    counts = [drawn.count(value) for value in (1, 2, 3, 4)]
    if scale is Scale.LINEAR:
        assert counts == [1000] * 4
    else:
        assert counts == sorted(counts, reverse=scale is Scale.LOG)
    assert min(counts) > 0


def test_a_child_is_active_with_its_parents_value_only() -> None:
    """facts/tuning#vertex: conditional parameters, several levels deep."""
    space = Space(MIXED)
    codes = space.encode([
        (("kind", "net"), ("rate", 0.1), ("layers", 2), ("units", 64.0), ("momentum", 0.9)),
        (("kind", "net"), ("rate", 0.1), ("layers", 1), ("momentum", 0.9)),
        (("kind", "line"), ("rate", 0.1)),
    ])  # fmt: skip
    assert np.isnan(codes).astype(int).tolist() == [
        [0, 0, 1, 0, 0, 0],
        [0, 0, 1, 0, 1, 0],
        [0, 0, 1, 1, 1, 1],
    ]


def test_one_id_at_two_nodes() -> None:
    """facts/tuning#vertex: same-name items below disjoint conditions; each branch keeps its own range."""
    tree = (
        Parameter("kind", ParameterType.CATEGORICAL, categories=("a", "b")),
        Parameter("size", ParameterType.INTEGER, 1, 9, parent=0, when=("a",)),
        Parameter("size", ParameterType.DOUBLE, 0.0, 1.0, parent=0, when=("b",)),
    )
    space = Space(tree)
    points = ((("kind", "a"), ("size", 7)), (("kind", "b"), ("size", 0.25)))
    assert tuple(space.decode(row) for row in space.encode(points)) == points


def test_equal_points_lie_together_and_categories_one_apart() -> None:
    space = Space(MIXED)
    tree, line = space.embed(
        space.encode(
            [(("kind", "tree"), ("rate", 0.1), ("depth", 6)), (("kind", "line"), ("rate", 0.1))]
        )
    )
    kinds = space.groups == 0
    assert ((tree - line)[kinds] ** 2).sum() == pytest.approx(1.0)


def test_branches_are_the_categories_that_decide() -> None:
    """Of `MIXED`: "tree" has one child, "net" two, "line" none."""
    assert Space(MIXED).branches == (0, 0, 1, 1, 1, 2)
    assert Space(MIXED[1:2]).branches == ()


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


def test_stored_text_gives_the_same_codes() -> None:
    """spec/tuning#algorithms: points read back from their stored JSON are the same points."""
    space = Space(MIXED)
    codes = space.snap(space.place(np.random.default_rng(3).random((50, space.width))))
    points = [space.decode(row) for row in codes]
    stored = [
        tuple((name, value) for name, value in json.loads(json.dumps(point))) for point in points
    ]
    assert np.array_equal(space.encode(stored), space.encode(points), equal_nan=True)
