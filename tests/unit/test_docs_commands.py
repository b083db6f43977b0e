"""What the guides show is proved somewhere, and the commands that they name are there."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tools.command_reference import commands

from tests.docs.blocks import SHOWN, SILENT, blocks, pages, shown, without_comment
from tests.docs.table import BLOCKS, COMMANDS, Elsewhere, PartOf, Runs
from trainshed.cli.groups import verb_first

ROOT = Path(__file__).parents[2]
_BY_WORDS = dict(commands())
_INLINE = re.compile(r"`((?:\./dev|trainshed) [^`]+)`")
_SHARED = {"--data", "--url", "--token", "--ca", "--format", "--project", "--region"}


def test_every_block_is_proved_somewhere() -> None:
    """A block that is new needs a row in tests/docs/table.py."""
    keys = {block.key for block in shown()}
    whole = {key for key in BLOCKS if "#" not in key}
    assert {key for key in keys if key.partition("#")[0] not in whole} == set(BLOCKS) - whole
    assert whole <= {block.page for block in shown()}


def test_every_block_says_what_it_is() -> None:
    """A language, or `text`; commands have a prompt."""
    for page in pages():
        for block in blocks(page):
            assert block.language in (*SHOWN, *SILENT), f"{block.key}: ```{block.language}"
            if block.language == "console":
                assert block.text.startswith("$ "), block.key


def test_tests_that_prove_blocks_are_there() -> None:
    for row in [*BLOCKS.values(), *COMMANDS.values()]:
        if isinstance(row, Elsewhere):
            file, _, name = row.test.partition("::")
            assert row.reason
            assert f"def {name}" in (ROOT / file).read_text(), row.test


def test_what_is_part_of_another_block_is_run_with_it() -> None:
    for key, row in BLOCKS.items():
        if isinstance(row, PartOf):
            whole = BLOCKS[row.key]
            assert isinstance(whole, Runs)
            assert key in whole.after


def test_every_exception_is_of_a_command_that_is_run() -> None:
    typed = [
        without_comment(command)
        for block in shown()
        if block.language == "console" and isinstance(BLOCKS.get(block.key), Runs)
        for command in block.commands
    ]
    unused = [pattern for pattern in COMMANDS if not any(re.match(pattern, c) for c in typed)]
    assert not unused


def _named() -> Iterator[tuple[str, str]]:
    """(page, command line) of every command of ours that a guide names, in blocks and in sentences."""
    for block in shown():
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


@pytest.mark.parametrize(("where", "line"), sorted(set(_named())))
def test_a_command_that_a_page_names_has_these_options(where: str, line: str) -> None:
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
        options |= {
            name for parameter in command.commands["list"].params for name in parameter.opts
        }
    ours = rest[: rest.index("--")] if "--" in rest else rest
    strange = [w for w in ours if re.match(r"--?[a-z]", w) and w.partition("=")[0] not in options]
    assert not strange, f"{where}: `{line}`"


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line.replace("…", ""))
    except ValueError:
        return line.split()
