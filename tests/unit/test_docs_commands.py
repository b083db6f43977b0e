"""Commands and options in the guides exist, and every shown command block has a test."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
from tools.command_reference import commands

from tests.docs.blocks import input_blocks, pages, without_comment
from tests.docs.table import BLOCKS
from trainshed.cli.commands import SECTIONS, verb_first

ROOT = Path(__file__).parents[2]
_BY_WORDS = dict(commands())
_INLINE = re.compile(r"`((?:\./dev|trainshed) [^`]+)`")
_SHARED = {"--data", "--url", "--token", "--ca", "--format", "--project", "--region"}


def test_tested_command_blocks_exist_in_the_guides() -> None:
    assert BLOCKS.keys() <= {block.key for block in input_blocks()}


def test_help_lists_every_command_once() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(path[0] for path in _BY_WORDS if len(path) == 1)


def test_package_extras_in_the_guides_exist() -> None:
    texts = (page.read_text("utf-8") for page in pages())
    extras = {
        name
        for text in texts
        for names in re.findall(r"trainshed\[([\w,-]+)\]", text)
        for name in names.split(",")
    }
    project = tomllib.loads((ROOT / "packages/trainshed/pyproject.toml").read_text("utf-8"))
    assert "kubernetes" in extras
    assert extras <= set(project["project"]["optional-dependencies"])


def _documented_commands() -> Iterator[tuple[str, str]]:
    """Yield (page, command line) for each `trainshed` or `./dev` command in the blocks and sentences of the
    guides."""
    for block in input_blocks():
        if block.language in ("console", "sh"):
            lines = block.commands if block.language == "console" else block.text.splitlines()
            for line in lines:
                for part in re.split(r"\||\$\(|&&|;", without_comment(line).replace("\\\n", " ")):
                    if part.strip().startswith("trainshed "):
                        yield block.key, part.strip().rstrip(')"')
    for page in pages():
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for line in _INLINE.findall(text):
            if line.startswith("trainshed "):
                yield page.name, " ".join(line.split())


def test_commands_in_the_guides_have_the_shown_options() -> None:
    for where, line in sorted(set(_documented_commands())):
        words = _words(line)
        path: tuple[str, ...] = ()
        rest = words[1:]
        while rest and rest[0] in _SHARED:
            rest = rest[2:]
        rest = verb_first(rest, {path[0] for path in _BY_WORDS if path})
        while rest and (*path, rest[0]) in _BY_WORDS:
            path, rest = (*path, rest[0]), rest[1:]
        assert path, f"{where}: there is no command `{line}`"
        command = _BY_WORDS[path]
        options = {
            name
            for parameter in [*command.params, click.Option(["-h", "--help"])]
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        if isinstance(command, click.Group) and rest:
            assert not re.fullmatch(r"[a-z][a-z-]*", rest[0]), f"{where}: there is no `{line}`"
        if isinstance(command, click.Group) and "list" in command.commands:
            options |= {name for option in command.commands["list"].params for name in option.opts}
        ours = rest[: rest.index("--")] if "--" in rest else rest
        strange = [w for w in ours if re.match(r"--?[a-z]", w) and w.partition("=")[0] not in options]
        assert not strange, f"{where}: `{line}`"


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line.replace("…", ""))
    except ValueError:
        return line.split()
