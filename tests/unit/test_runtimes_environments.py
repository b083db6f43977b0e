"""How a base environment is installed: ranges, locks, and builds that are tried first (SPEC §4)."""

import os
import time
from pathlib import Path

import pytest

from tests.caches import remove_cache
from trainshed.runtimes.environments import Environments
from trainshed.runtimes.installer import Installer
from trainshed.runtimes.interpreters import running_interpreter
from trainshed.runtimes.port import BuildFailed
from trainshed.runtimes.sheet import Release, Sheet

_UV = """#!/bin/sh
case "$*" in
    --version) echo "uv 9.9.9" ;;
    *--torch-backend*BROKEN*) echo "error: no such build" >&2; exit 2 ;;
    *FULL*) echo "cause: failed to write: No space left on device (os error 28)" >&2; exit 2 ;;
    *NOWHERE*) echo "error: Failed to fetch: index" >&2; exit 2 ;;
    *) echo "uv $*" ;;
esac
"""


def _built(
    tmp_path: Path, release: Release, smoke: str = "import sys", **environ: str
) -> tuple[Path, list[str]]:
    """The environment's directory and what was said, from a uv that installs nothing."""
    tmp_path.mkdir(exist_ok=True)
    uv, program = tmp_path / "uv", tmp_path / "smoke.py"
    uv.write_text(_UV)
    uv.chmod(0o755)
    program.write_text(smoke)
    sheet = Sheet("family", "Family", (release,), ("common",), program, ((3, 10), (3, 13)))
    known = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    installer = Installer(tmp_path / "uv-cache", {**known, **environ}, str(uv))
    said: list[str] = []
    environments = Environments(tmp_path / "cache", installer, time.monotonic_ns)
    prefix = environments.build(sheet, release, running_interpreter(), said.append)
    return prefix.root, said


def _installs(said: list[str]) -> list[str]:
    return [line.partition("--link-mode hardlink ")[2] for line in said if "pip install" in line]


_ALL = ((3, 6), (3, 99))
_FIRST = ("--torch-backend", "cpu")


def test_ranges_are_installed(tmp_path: Path) -> None:
    root, said = _built(tmp_path, Release("1.0", _ALL, ("framework>=1",)))
    assert _installs(said) == ["common framework>=1"]
    assert (root / "content.txt").read_text() == ""
    remove_cache(root)


def test_a_lock_takes_the_place_of_all_ranges_and_is_part_of_the_name(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("framework==1.0.3\n")
    root, said = _built(tmp_path, Release("1.0", _ALL, ("framework>=1",), lock))
    assert _installs(said) == [f"--requirement {lock}"]
    other = tmp_path / "other.lock"
    other.write_text("framework==1.0.4\n")
    assert _built(tmp_path, Release("1.0", _ALL, ("framework>=1",), other))[0] != root
    remove_cache(tmp_path / "cache")


def test_what_is_tried_first_is_tried_where_no_index_is_configured(tmp_path: Path) -> None:
    """The build for CPUs, without which a job's runtime would be ten times as large."""
    release = Release("1.0", _ALL, ("framework",), first=_FIRST)
    assert _installs(_built(tmp_path / "a", release)[1]) == ["--torch-backend cpu common framework"]
    told = _built(tmp_path / "b", release, PIP_FIND_LINKS="/wheels")[1]
    assert _installs(told) == ["common framework"]


def test_what_cannot_be_had_first_is_had_without(tmp_path: Path) -> None:
    _, said = _built(tmp_path, Release("1.0", _ALL, ("BROKEN",), first=_FIRST))
    assert _installs(said)[-1] == "common BROKEN"
    assert any("--torch-backend cpu" in line and "no such build" in line for line in said)


def test_a_full_disk_is_told_apart_from_an_index_that_does_not_answer(tmp_path: Path) -> None:
    """SPEC §8: the error says what to do next."""
    with pytest.raises(BuildFailed, match=r"runtimes gc.*TRAINSHED_CACHE") as failed:
        _built(tmp_path / "a", Release("1.0", _ALL, ("FULL",)))
    assert "package index" not in str(failed.value)
    with pytest.raises(BuildFailed, match="package index can be reached"):
        _built(tmp_path / "b", Release("1.0", _ALL, ("NOWHERE",)))


def test_an_environment_that_does_not_work_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="no framework here"):
        _built(tmp_path, Release("1.0", _ALL), smoke="raise SystemExit('no framework here')")
    assert not [path for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")]
