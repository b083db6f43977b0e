"""Rules for all commands of the command line, and errors of mistyped commands."""

import pwd
import sys
from collections.abc import Iterator
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner

from trainshed import __main__ as main
from trainshed.__main__ import group
from trainshed.cli.commands import LazyCommand


def _commands(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    loaded = command.load() if isinstance(command, LazyCommand) else command
    if isinstance(loaded, click.Group):
        for name, inner in loaded.commands.items():
            yield from _commands(inner, *path, name)
    else:
        yield " ".join(path), loaded


def test_all_commands_with_an_output_format_option_offer_json_and_yaml() -> None:
    for name, command in _commands(group):
        for parameter in command.params:
            if "--format" in parameter.opts:
                assert isinstance(parameter.type, click.Choice), name
                forms = set(parameter.type.choices) - {"text", "table", "csv", "jsonl"}
                assert forms == {"json", "yaml"}, name


@pytest.mark.parametrize("name", ["grpc", "google.protobuf", "trainshed_reduction"])
def test_missing_service_dependency_error_shows_the_pip_command(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "group", Mock(side_effect=ModuleNotFoundError(name=name)))
    with pytest.raises(SystemExit, match=r"pip install 'trainshed\[service\]'"):
        main.main()


def test_permission_error_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = PermissionError(13, "Permission denied", "/srv/data")
    monkeypatch.setattr(main, "group", Mock(side_effect=refused))
    with pytest.raises(SystemExit, match=r"/srv/data: Permission denied\. Run the command as "):
        main.main()


def test_missing_home_directory_error_advises_to_set_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError("as in containers of any user")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(sys, "argv", ["trainshed", "up"])
    with pytest.raises(SystemExit, match="Set HOME to a directory"):
        main.main()


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("logs", "No such command 'logs'. Did you mean 'trainshed jobs logs'?"),
        ("job", "No such command 'job'. Did you mean 'jobs'?"),
        ("frobnicate", "No such command 'frobnicate'."),
    ],
)
def test_mistyped_command_gets_a_suggestion(typed: str, text: str) -> None:
    result = CliRunner().invoke(group, [typed, "x"], prog_name="trainshed")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, f"Error: {text}")
