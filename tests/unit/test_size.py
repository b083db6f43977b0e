"""The project grows no more: `./dev size`."""

from tools.size import sizes


def test_nothing_is_larger_than_its_ceiling() -> None:
    assert [size for size in sizes() if size.value > size.ceiling] == []
