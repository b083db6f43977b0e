"""What every command of the tree has, whoever wrote it last."""

from collections.abc import Iterator

import click

from trainshed.cli.commands import LazyCommand
from trainshed.serve.main import group

_NO_FORMAT = {
    "completion": "prints the script of a shell",
    "demo": "shows a story to a person",
    "jobs autopsy": "is a shell in this terminal, or copies",
    "jobs shell": "is a shell in this terminal",
}
"""Commands without --format, and why."""


def _commands(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    loaded = command.load() if isinstance(command, LazyCommand) else command
    if isinstance(loaded, click.Group):
        for name, inner in loaded.commands.items():
            yield from _commands(inner, *path, name)
    else:
        yield " ".join(path), loaded


def test_every_command_has_a_format_for_programs() -> None:
    without = set(_NO_FORMAT)
    for name, command in _commands(group):
        formats = [parameter for parameter in command.params if "--format" in parameter.opts]
        assert bool(formats) is (name not in without), name
        for parameter in formats:
            assert isinstance(parameter.type, click.Choice), name
            assert {"text", "table", "json", "yaml"} == set(parameter.type.choices), name
