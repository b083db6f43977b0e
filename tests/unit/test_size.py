"""The project grows no more (`./dev size`), and calls its variables by what they hold."""

from tools.size import ROOT, sizes, vague_names


def test_nothing_is_larger_than_its_ceiling() -> None:
    assert [size for size in sizes() if size.value > size.ceiling] == []


def test_variables_are_named_for_what_they_hold() -> None:
    """Not `found`, `told` or `each`: the names of `tools.size.VAGUE`."""
    places = ("packages/*/src", "packages/*/tests", "tests", "tools", "bench")
    sources = sorted(path for place in places for path in ROOT.glob(f"{place}/**/*.py"))
    assert [place for source in sources for place in vague_names(source)] == []
