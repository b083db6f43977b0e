"""Limits of the project's size (`./dev size`), and names of variables."""

from tools.size import ROOT, sizes, vague_names


def test_no_figure_exceeds_its_limit() -> None:
    assert [size for size in sizes() if size.is_exceeded] == []


def test_variables_are_named_for_what_they_hold() -> None:
    """Not `found`, `told` or `each`: the names of `tools.size.VAGUE`."""
    places = ("packages/*/src", "packages/*/tests", "tests", "tools", "bench")
    sources = sorted(path for place in places for path in ROOT.glob(f"{place}/**/*.py"))
    assert [place for source in sources for place in vague_names(source)] == []
