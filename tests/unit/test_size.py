"""Limits of the project's size (`./dev size`), and names of variables."""

from tools.size import ROOT, sizes, vague_names


def test_code_size_figures_of_the_project_are_within_the_limits() -> None:
    assert [size for size in sizes() if size.is_exceeded] == []


def test_source_has_no_vague_variable_names() -> None:
    """`tools.size.VAGUE` lists forbidden names such as `found` and `told`."""
    places = ("packages/*/src", "packages/*/tests", "tests", "tools", "bench")
    sources = sorted(path for place in places for path in ROOT.glob(f"{place}/**/*.py"))
    assert [place for source in sources for place in vague_names(source)] == []
