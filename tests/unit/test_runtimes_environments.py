"""Tests of the installation of a base environment: version ranges, locks, and preferred builds
(spec/runtimes#environments)."""

import os
import time
from pathlib import Path

import pytest

from tests.caches import remove_cache
from trainshed.runtimes.environments import Environments
from trainshed.runtimes.families import Release, Sheet
from trainshed.runtimes.installer import Installer
from trainshed.runtimes.interpreters import running_interpreter
from trainshed.runtimes.port import BuildFailed

_UV = """#!/bin/sh
case "$*" in
    --version) echo "uv 9.9.9" ;;
    *--torch-backend*BROKEN*) echo "error: no such build" >&2; exit 2 ;;
    *FULL*) echo "cause: failed to write: No space left on device (os error 28)" >&2; exit 2 ;;
    *NOWHERE*) echo "error: Failed to fetch: index" >&2; exit 2 ;;
    *) echo "uv $*" ;;
esac
"""


def _build(
    tmp_path: Path,
    release: Release,
    imports: tuple[str, ...] = (),
    lock: str = "framework==1.0.3\n",
    **environ: str,
) -> tuple[Path, list[str]]:
    """Build an environment with a simulated uv that installs nothing. Return its directory and the progress
    lines."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "1.0.lock").write_text(lock)
    uv = tmp_path / "uv"
    uv.write_text(_UV)
    uv.chmod(0o755)
    preferred = ((3, 10), (3, 13))
    sheet = Sheet("family", "Family", (release,), ("common",), tmp_path, preferred, imports)
    known = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    installer = Installer(tmp_path / "uv-cache", {**known, **environ}, str(uv))
    lines: list[str] = []
    environments = Environments(tmp_path / "cache", installer, time.monotonic_ns)
    base = environments.base(sheet, release, running_interpreter())
    environments.build(base, lines.append)
    return base.prefix.root, lines


def _installs(lines: list[str]) -> list[str]:
    """Return the lines without repeated heartbeat lines."""
    return [line.partition("--link-mode hardlink ")[2] for line in lines if line[:6] == "uv pip"]


_ALL = ((3, 6), (3, 99))
_FIRST = ("--torch-backend", "cpu")


def test_environment_is_installed_from_the_lock_file_without_dependency_resolution(tmp_path: Path) -> None:
    release = Release("1.0", _ALL, ("framework>=1",))
    root, lines = _build(tmp_path / "a", release)
    assert _installs(lines) == [f"--no-deps --requirement {tmp_path / 'a/1.0.lock'}"]
    assert (root / "content.txt").read_text() == ""
    assert _build(tmp_path / "b", release, lock="framework==1.0.4\n")[0].name != root.name
    remove_cache(tmp_path / "a/cache")
    remove_cache(tmp_path / "b/cache")


def test_packages_excluded_from_an_environment_are_not_installed_by_job_requirements(tmp_path: Path) -> None:
    """Otherwise a job that requires the installed XGBoost would download 300 MB for GPUs."""
    root, _ = _build(tmp_path, Release("1.0", _ALL, ("framework",), excluded=("gpu-library",)))
    (metadata,) = root.glob("excluded/*.dist-info")
    assert metadata.name == "gpu_library-0.dist-info"
    assert "Name: gpu-library\nVersion: 0\n" in (metadata / "METADATA").read_text()
    remove_cache(tmp_path / "cache")


def test_preferred_cpu_build_is_tried_only_if_no_package_index_is_configured(tmp_path: Path) -> None:
    """The build for CPUs is ten times smaller."""
    release = Release("1.0", _ALL, ("framework",), first=_FIRST)
    lines, lock = _build(tmp_path / "a", release)[1], tmp_path / "a/1.0.lock"
    assert _installs(lines) == [f"--torch-backend cpu --constraint {lock} common framework"]
    lines = _build(tmp_path / "b", release, PIP_FIND_LINKS="/wheels")[1]
    assert _installs(lines) == [f"--constraint {tmp_path / 'b/1.0.lock'} common framework"]


def test_default_build_is_installed_if_the_preferred_cpu_build_is_unavailable(tmp_path: Path) -> None:
    _, lines = _build(tmp_path, Release("1.0", _ALL, ("BROKEN",), first=_FIRST))
    assert _installs(lines)[-1] == f"--constraint {tmp_path / '1.0.lock'} common BROKEN"
    assert any("--torch-backend cpu" in line and "no such build" in line for line in lines)


def test_full_disk_is_distinguished_from_an_unreachable_index(tmp_path: Path) -> None:
    """spec/operations#errors: The error contains a remedy."""
    with pytest.raises(BuildFailed, match=r"runtimes gc.*TRAINSHED_CACHE") as failed:
        _build(tmp_path / "a", Release("1.0", _ALL, ("FULL",), first=_FIRST))
    assert "package index" not in str(failed.value)
    with pytest.raises(BuildFailed, match="can reach the package index"):
        _build(tmp_path / "b", Release("1.0", _ALL, ("NOWHERE",), first=_FIRST))


def test_environment_whose_framework_cannot_be_imported_is_removed(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="No module named 'framework'"):
        _build(tmp_path, Release("1.0", _ALL), imports=("sys", "framework"))
    assert not [path for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")]
