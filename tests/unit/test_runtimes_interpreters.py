"""Tests of finding interpreters: shims, broken and unresponsive interpreters are skipped."""

import json
import sys
from pathlib import Path

import pytest

from trainshed.runtimes.interpreters import Interpreters


def _fake(path: Path, version: tuple[int, int, int], *, implementation: str = "cpython") -> Path:
    """Create an executable that answers like an interpreter and counts its runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    answer = {
        "version": version,
        "executable": str(path),
        "prefix": str(path.parent.parent),
        "stdlib": "/lib",
        "include": "/include",
        "library_directory": "",
    }
    printed = json.dumps(answer) if implementation == "cpython" else "False"
    path.write_text(f"#!/bin/sh\necho run >> '{path}.runs'\necho '{printed}'\n")
    path.chmod(0o755)
    return path


def _runs(path: Path) -> int:
    runs = Path(f"{path}.runs")
    return len(runs.read_text().splitlines()) if runs.exists() else 0


def _look(tmp_path: Path, **environ: str) -> Interpreters:
    known = {"HOME": str(tmp_path / "home"), "PATH": "", **environ}
    return Interpreters(known)


def test_interpreter_search_skips_an_interpreter_that_does_not_respond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = _fake(tmp_path / "bin" / "python3.99", (3, 99, 1))
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr("trainshed.runtimes.interpreters._PROBE_TIMEOUT", 0.1)
    assert (3, 99) not in _look(tmp_path, PATH=str(tmp_path / "bin")).found()


@pytest.mark.parametrize("directory", ["shims", "bin"])
def test_interpreter_search_skips_shims_and_broken_interpreters(tmp_path: Path, directory: str) -> None:
    if directory == "shims":
        shim = _fake(tmp_path / directory / "python3.96", (3, 96, 0))
    else:
        shim = _fake(tmp_path / directory / "python3.96", (3, 96, 0), implementation="pypy")
        broken = tmp_path / directory / "python3.95"
        broken.write_text("#!/bin/sh\nexit 127\n")
        broken.chmod(0o755)
    interpreters = _look(tmp_path, PATH=str(tmp_path / directory))
    assert set(interpreters.found()) == {sys.version_info[:2]}
    assert interpreters.get((3, 96)) is None
    assert _runs(shim) == (0 if directory == "shims" else 1)


def test_interpreter_search_skips_unreadable_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example is a PYENV_ROOT that belongs to another user."""

    def refuse(self: Path, pattern: str) -> list[Path]:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "glob", refuse)
    interpreters = _look(tmp_path, PYENV_ROOT=str(tmp_path), PATH=str(tmp_path))
    assert list(interpreters.found()) == [sys.version_info[:2]]
