"""Which source of a `gsutil cp` goes to which destination, by table; the real program is
asked by tests/programs/test_gsutil.py."""

import pytest

from trainshed_gsutil import urls
from trainshed_gsutil.errors import CommandFailure, InvalidUrl
from trainshed_gsutil.naming import Destination, Source, must_be_container, target_of


def source(given: str, found: str = "", how: str = "") -> Source:
    """`how`: words of "inside" (a container), "many", "tops"."""
    return Source(
        urls.parse(given),
        urls.parse(found or given),
        "inside" in how,
        "many" in how or "tops" in how,
        "tops" in how,
    )


def destination(text: str, how: str = "") -> Destination:
    """`how`: "there" if it is a directory, a bucket, or a prefix with something below it."""
    url = urls.parse(text)
    there = "there" in how or url.is_bucket
    return Destination(url, there, there and not url.is_cloud)


@pytest.mark.parametrize(
    ("given", "to", "recursive", "target"),
    [
        # One file or object.
        (source("a.txt"), destination("gs://b/x"), False, "gs://b/x"),
        (source("a.txt"), destination("gs://b"), False, "gs://b/a.txt"),
        (source("d/a.txt"), destination("gs://b/x/", "there"), False, "gs://b/x/a.txt"),
        (source("d/a.txt"), destination("gs://b/x", "there"), False, "gs://b/x/a.txt"),
        (source("gs://b/d/a"), destination("."), False, "file://."),
        (source("gs://b/d/a"), destination(".", "there"), False, "file://./a"),
        (source("gs://b/d/a"), destination("out/", "there"), False, "file://out/a"),
        (source("-"), destination("gs://b/x"), False, "gs://b/x"),
        # Several of them.
        (source("d/a", how="many tops"), destination("gs://b/x"), False, "gs://b/x/a"),
        (source("*.txt", "a.txt", "many tops"), destination("gs://b"), False, "gs://b/a.txt"),
        (
            source("gs://b/d/*", "gs://b/d/a", "many tops"),
            destination("out", "there"),
            False,
            "file://out/a",
        ),
        # A directory: what does not exist takes its place, into what exists it goes with its name.
        (source("dir", "dir/a/b", "inside many"), destination("gs://b/x"), True, "gs://b/x/a/b"),
        (source("dir/", "dir/a/b", "inside many"), destination("gs://b/x"), True, "gs://b/x/a/b"),
        (
            source("dir", "dir/a/b", "inside many"),
            destination("gs://b/x", "there"),
            True,
            "gs://b/x/dir/a/b",
        ),
        (source("dir", "dir/a/b", "inside many"), destination("gs://b"), True, "gs://b/dir/a/b"),
        (source("e/dir", "e/dir/a", "inside"), destination("gs://b"), True, "gs://b/dir/a"),
        (source(".", "./a/b", "inside many"), destination("gs://b"), True, "gs://b/a/b"),
        (source(".", "./a/b", "inside many"), destination("gs://b/x"), True, "gs://b/x/a/b"),
        # Two directories keep their names.
        (
            source("e/dir", "e/dir/a", "inside tops"),
            destination("gs://b/x"),
            True,
            "gs://b/x/dir/a",
        ),
        # A prefix, a bucket.
        (
            source("gs://b/d", "gs://b/d/e/f", "inside many"),
            destination("out", "there"),
            True,
            "file://out/d/e/f",
        ),
        (
            source("gs://b/d/", "gs://b/d/e/f", "inside many"),
            destination("gs://c/x"),
            True,
            "gs://c/x/e/f",
        ),
        (
            source("gs://b", "gs://b/d/e", "inside many"),
            destination("out", "there"),
            True,
            "file://out/b/d/e",
        ),
        # Wildcards on the way: the names that they stand for.
        (
            source("gs://b/*/s", "gs://b/one/s/f", "inside tops"),
            destination("gs://c"),
            True,
            "gs://c/s/f",
        ),
        # ** forgets directories.
        (
            source("gs://b/**", "gs://b/d/e/f", "tops"),
            destination("out", "there"),
            False,
            "file://out/f",
        ),
    ],
)
def test_where_a_source_goes(given: Source, to: Destination, recursive: bool, target: str) -> None:
    assert str(target_of(given, to, recursive)) == str(urls.parse(target))


def test_a_stream_needs_a_name() -> None:
    with pytest.raises(CommandFailure, match="Destination object name needed"):
        target_of(source("-"), destination("gs://b"), recursive=False)


def test_many_sources_need_a_directory() -> None:
    must_be_container(destination("gs://b/x"), "cp")
    with pytest.raises(CommandFailure, match="must name a directory, bucket"):
        must_be_container(destination("out"), "cp")


def test_the_names_of_two_relative_parents_are_not_guessed() -> None:
    with pytest.raises(InvalidUrl, match="name conflicts"):
        target_of(source("..", "../a", "inside tops"), destination("gs://b"), recursive=True)
