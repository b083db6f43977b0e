"""All-reduce of NumPy arrays, without PyTorch."""

import sys
from pathlib import Path

from tests.reduction.programs import environment, run_one, run_ranks, with_reducers
from tests.reduction.reducers import PACKAGES, Reducers
from trainshed_reduction.variables import NATIVE


def test_arrays_are_summed_in_place() -> None:
    """spec/reduction: all element types, means, groups by name; what cannot be summed is refused before
    anything is sent."""
    with Reducers(2) as reducers:
        environ = with_reducers(reducers.addresses)
        ended = run_ranks(sys.executable, "arrays.py", 3, environment(PACKAGES, **environ))
    assert [rank.status for rank in ended] == [0, 0, 0]
    for rank in ended:
        assert rank.output.splitlines()[-1] == "ok"
        assert "uint8 is not summed" in rank.output and "ascontiguousarray" in rank.output
        assert "str is not summed" in rank.output
    assert len(ended[0].said) == 1
    assert not ended[1].said and not ended[2].said


def test_no_reducers_is_an_error() -> None:
    """spec/reduction: arrays have no native way."""
    ended = run_one(sys.executable, ["arrays.py"], environment(PACKAGES, RANK="0", WORLD_SIZE="2"))
    assert ended.status == 1
    assert "TRAINSHED_REDUCERS is not set" in ended.errors


def test_without_the_part_in_c_is_an_error(tmp_path: Path) -> None:
    """spec/reduction#exactness: before anybody is looked for."""
    environ = with_reducers(
        (("127.0.0.1", 1),), RANK="0", WORLD_SIZE="2", **{NATIVE: str(tmp_path)}
    )
    ended = run_one(sys.executable, ["arrays.py"], environment(PACKAGES, **environ))
    assert ended.status == 1
    assert "reducers need the package's part in C" in ended.errors
