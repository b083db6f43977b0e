"""Advice that can be copied out of the terminal as it is."""

import sys
from pathlib import Path

import pytest

from trainshed.cli.spelling import data_option, typed


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a command of its own that is not on PATH."""
    command = tmp_path / ".venv" / "bin" / "trainshed"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(command.with_name("python")))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    return command


def test_the_command_is_named_as_a_shell_finds_it(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed() == ".venv/bin/trainshed"
    (elsewhere := installed.parents[2] / "else where").mkdir()
    monkeypatch.chdir(elsewhere)
    assert typed() == str(installed)
    monkeypatch.setenv("PATH", str(installed.parent))
    assert typed() == "trainshed"


def test_another_installation_of_that_name_is_not_meant(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "trainshed"
    other.parent.mkdir()
    other.write_bytes(installed.read_bytes())
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    assert typed() == ".venv/bin/trainshed"


def test_where_no_command_is_installed_the_ordinary_name_stands(
    installed: Path,
) -> None:
    installed.unlink()
    assert typed() == "trainshed"


def test_only_an_unusual_data_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_option(tmp_path / ".trainshed") == ""
    assert data_option(tmp_path / "of the team") == f" --data '{tmp_path}/of the team'"
