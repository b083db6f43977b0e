"""What every command of the tree has, whoever wrote it last."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from trainshed.cli.commands import LazyCommand
from trainshed.serve.main import group

_NO_FORMAT = {
    "completion": "prints the script of a shell",
    "demo": "shows a story to a person",
    "jobs autopsy": "is a shell in this terminal, or copies",
    "jobs shell": "is a shell in this terminal",
}
"""Commands without --format, and why."""
_WITHOUT_SERVICE = (
    "backup",
    "completion",
    "doctor",
    "reducers plan",
    "reducers wheel",
    "restore",
    "runtimes build",
    "runtimes gc",
    "runtimes list",
    "runtimes warm",
    "up",
)
"""Commands that speak with no service, and say so where one is named."""
_REQUIRED = {
    "reducers plan": ("--workers", "2", "--machine", "n1-standard-4"),
    "runtimes build": ("pytorch",),
    "completion": ("bash",),
    "backup": ("x",),
    "restore": ("x",),
}


def _commands(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    loaded = command.load() if isinstance(command, LazyCommand) else command
    if isinstance(loaded, click.Group):
        for name, inner in loaded.commands.items():
            yield from _commands(inner, *path, name)
    else:
        yield " ".join(path), loaded


_COMMANDS = dict(_commands(group))


def _options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def test_every_command_has_a_format_for_programs() -> None:
    without = {name for name, each in _COMMANDS.items() if "--format" not in _options(each)}
    assert without == set(_NO_FORMAT)
    for name, command in _COMMANDS.items():
        for parameter in command.params:
            if "--format" in parameter.opts:
                assert isinstance(parameter.type, click.Choice), name
                assert {"text", "table", "json", "yaml"} == set(parameter.type.choices), name


def test_every_command_takes_a_service_or_says_why_not() -> None:
    shared = {"--url", "--token", "--data"}
    lacking = {name: shared - _options(each) for name, each in _COMMANDS.items()}
    assert {name: options for name, options in lacking.items() if options} == {}


@pytest.mark.parametrize("name", _WITHOUT_SERVICE)
def test_a_command_without_a_service_says_what_to_use_instead(name: str) -> None:
    words = [*name.split(), *_REQUIRED.get(name, ())]
    result = CliRunner().invoke(group, [*words, "--token", "x"], prog_name="trainshed")
    assert result.exit_code == 2
    told = result.stderr.splitlines()[-1]
    assert told.startswith("Error: --token is not for this command. ")
    assert "--token" not in CliRunner().invoke(group, [*name.split(), "--help"]).stdout
