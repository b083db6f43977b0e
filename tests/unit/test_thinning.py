"""What is drawn of many values (facts/experiments#points)."""

import math

from hypothesis import given
from hypothesis import strategies as st

from trainshed.core.tensorboards import averaged, thinned

VALUES = st.lists(st.floats() | st.integers(0, 3).map(float), min_size=1, max_size=200)


@given(VALUES, st.integers(2, 60))
def test_no_extreme_is_lost(values: list[float], most: int) -> None:
    places = thinned(values, most)
    assert len(places) <= most
    assert list(places) == sorted(set(places))
    assert (places[0], places[-1]) == (0, len(values) - 1)
    kept = [values[place] for place in places]
    numbers = [value for value in values[1:-1] if not math.isnan(value)]
    if most >= 4 and numbers:
        assert min(numbers) in kept
        assert max(numbers) in kept


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(1, 60))
def test_means_are_of_all_values(values: list[float], most: int) -> None:
    means = averaged(values, most)
    assert len(means) == min(most, len(values))
    ends = [place + 1 for place, _ in means]
    whole = sum(
        mean * (end - begin) for (_, mean), begin, end in zip(means, [0, *ends], ends, strict=False)
    )
    assert ends[-1] == len(values)
    assert math.isclose(whole, sum(values), abs_tol=1e-3)
