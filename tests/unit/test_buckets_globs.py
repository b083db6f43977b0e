"""Names that a glob of a list matches, as the public service says."""

import pytest

from trainshed.buckets import listing


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("**/foobar", ["foo/foobar", "foobar", "x/y/foobar"]),
        ("**/{foobar,baz}", ["foo/baz", "foo/foobar", "foobar", "x/y/foobar"]),
        ("foo/**/baz", ["foo/baz"]),
        ("x/**/foobar", ["x/y/foobar"]),
        ("foo**bar", ["foo/bar", "foo/foobar", "foobar"]),
        ("foo**/bar", ["foo/bar"]),
    ],
)
def test_two_stars_and_a_slash_are_any_number_of_directories(
    pattern: str, names: list[str]
) -> None:
    glob = listing.compile_glob(pattern)
    every = ["foo/bar", "foo/baz", "foo/foobar", "foobar", "x/y/foobar", "xfoobar"]
    assert [name for name in every if glob.is_all_of(name)] == names
