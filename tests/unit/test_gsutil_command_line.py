"""What gsutil is asked for, and what its wildcards list and match."""

import pytest

from trainshed_gsutil import commands, options, sizes, urls
from trainshed_gsutil.commands.access import changed
from trainshed_gsutil.errors import CommandFailure, InvalidUrl


def test_options_before_the_command_and_behind_it() -> None:
    argv = [
        "-m",
        "-q",
        "-h",
        "Content-Type: a/b",
        "-o",
        "GSUtil:x=1",
        "-u",
        "p",
        "cp",
        "-r",
        "a",
        "b",
    ]
    asked = options.split(argv)
    assert (asked.command, asked.arguments) == ("cp", ("-r", "a", "b"))
    assert asked.headers == {"content-type": "a/b"}
    assert asked.settings == {"GSUtil:x": "1"}
    assert (asked.project, asked.parallel, asked.quiet) == ("p", True, True)
    found, rest = options.of_command("cp", ["-r", "-z", "js", "a", "-x"], "rz:")
    assert (found.has("r"), found.value("z"), found.value("n"), rest) == (
        True,
        "js",
        "",
        ["a", "-x"],
    )


@pytest.mark.parametrize("argv", [["-Y", "cp"], ["-h", "nothing", "cp"]])
def test_unknown_options_are_said(argv: list[str]) -> None:
    with pytest.raises(CommandFailure, match="Incorrect"):
        options.split(argv)


def test_unknown_commands_are_said() -> None:
    with pytest.raises(CommandFailure, match='Invalid command "fly"'):
        commands.find("fly")
    with pytest.raises(CommandFailure, match="not served"):
        commands.find("signurl")
    for name in (*commands.names(), "move", "copy", "list"):
        assert callable(commands.find(name))


@pytest.mark.parametrize(
    ("text", "bucket", "name", "generation"),
    [
        ("gs://b/a/b", "b", "a/b", ""),
        ("gs://b/a#12", "b", "a", "12"),
        ("gs://b", "b", "", ""),
        ("gs://b/", "b", "", ""),
        ("gs://", "", "", ""),
        ("GS://b/a", "b", "a", ""),
        ("file:///tmp/x", None, "/tmp/x", ""),
        ("a:b", None, "a:b", ""),
        ("-", None, "-", ""),
    ],
)
def test_urls(text: str, bucket: str | None, name: str, generation: str) -> None:
    assert urls.parse(text) == (bucket, name, generation)


@pytest.mark.parametrize("text", ["s3://b/a", "gs:///a"])
def test_what_is_no_url(text: str) -> None:
    with pytest.raises(InvalidUrl):
        urls.parse(text)


@pytest.mark.parametrize(
    ("wildcard", "prefix", "delimiter", "rest", "matching", "other"),
    [
        ("d/*.txt", "d/", "/", "", "d/a.txt", "d/a.csv"),
        ("d/a?", "d/a", "/", "", "d/a1", "d/a"),
        ("d/[ab]1", "d/", "/", "", "d/b1", "d/c1"),
        ("*/x/*.txt", "", "/", "x/*.txt", "anything", ""),
        ("d/**", "d/", "", "", "d/e/f", "e/d"),
        ("d/**/f", "d/", "", "", "d/f", "d/g"),
        ("**/f", "", "", "", "f", "g"),
        ("plain", "plain", "/", "", "plain", "plainer"),
    ],
)
def test_wildcards(
    wildcard: str, prefix: str, delimiter: str, rest: str, matching: str, other: str
) -> None:
    step = urls.step(wildcard)
    assert (step.prefix, step.delimiter, step.rest) == (prefix, delimiter, rest)
    assert step.matches(matching)
    assert not other or not step.matches(other)


def test_two_stars_in_paths() -> None:
    assert urls.split_path("d/**/*.txt") == ("d", "*.txt")
    assert urls.split_path("d/**") == ("d", "*")
    assert urls.split_path("d/*") is None


@pytest.mark.parametrize(
    ("size", "readable", "precise"),
    [(0, "0 B", "0.0 B"), (1536, "1.5 KiB", "1.5 KiB"), (1 << 30, "1 GiB", "1.0 GiB")],
)
def test_sizes(size: int, readable: str, precise: str) -> None:
    assert (sizes.readable(size), sizes.precise(size)) == (readable, precise)


def test_grants_are_added_and_removed() -> None:
    policy = {"etag": "e", "bindings": [{"role": "roles/storage.admin", "members": ["user:a"]}]}
    more = changed(policy, ["serviceAccount:x@y:objectViewer"])
    assert {"role": "roles/storage.objectViewer", "members": ["serviceAccount:x@y"]} in more[
        "bindings"
    ]
    assert changed(more, ["-d", "serviceAccount:x@y:objectViewer"]) == policy
