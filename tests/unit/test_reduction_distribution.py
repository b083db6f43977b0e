"""Tests of the package that workers import and users install into images (spec/reduction)."""

import os
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from trainshed.runtimes import reduction
from trainshed.runtimes.port import BuildFailed
from trainshed.runtimes.reduction import Reduction
from trainshed.runtimes.stop import Stop


def test_reduction_package_contains_only_sources() -> None:
    """spec/reduction: One package supports all Pythons and machines."""
    suffixes = {Path(name).suffix for name in reduction.content() if "dist-info" not in name}
    assert {".py", ".c"} <= suffixes <= {".py", ".c", ".h", ".typed"}


def test_build_without_a_compiler_reports_that_native_all_reduce_is_used(tmp_path: Path) -> None:
    """spec/reduction#reports: the package without the C library is built once. If a compiler is installed
    later, the package is built again with the library."""
    lines: list[str] = []
    bare = Reduction(tmp_path / "shelf", {"PATH": str(tmp_path)})
    assert bare.find() is None
    place = bare.build(lines.append)
    assert "all-reduce is native: the C library of trainshed_reduction was not built" in lines[-1]
    assert not list(place.rglob("*.so"))
    assert (bare.find(), bare.build(lines.append), len(lines)) == (place, place, 2)
    (tmp_path / "cc").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "cc").chmod(0o755)
    assert Reduction(tmp_path / "shelf", {"PATH": str(tmp_path)}).key != bare.key
    assert not (place / "trainshed_reduction/wire.py").stat().st_mode & 0o222


def test_compilation_of_native_code_is_retried_some_time_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/reduction#reports: The compiler may have lacked time or memory."""
    (tmp_path / "cc").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "cc").chmod(0o755)
    outcomes = ["cc failed: no memory", "", "", ""]

    def run(*_: object) -> str:
        return outcomes.pop(0)

    now = Mock(**{"time.return_value": 1e9})
    monkeypatch.setattr(reduction, "time", now)
    monkeypatch.setattr(Reduction, "_run", run)
    package, lines = Reduction(tmp_path / "shelf", {"PATH": str(tmp_path)}), list[str]()
    without = package.build(lines.append)
    assert lines[-1] == "Reducers are not used, and all-reduce is native: cc failed: no memory"
    os.utime(without / ".built", (1, 1))
    assert package.find() == without, "not for each job"
    assert (without / ".built").stat().st_mtime > 1, "a full cache must not lose what a job gets"
    now.time.return_value += 3600
    assert package.find() is None
    whole = package.build(lines.append)
    assert package.find() == whole != without and not outcomes


def test_stopping_the_service_ends_a_running_compiler(tmp_path: Path) -> None:
    begun, compiler, closing = tmp_path / "begun", tmp_path / "cc", Stop()
    os.mkfifo(begun)
    # A surviving sleep keeps the output pipe open, so that the test hangs.
    compiler.write_text(f"#!/bin/sh\n: >{begun}\n/bin/sleep 600\n")
    compiler.chmod(0o755)
    package = Reduction(tmp_path / "shelf", {"PATH": str(tmp_path)}, closing)
    ending = threading.Thread(target=lambda: (begun.read_bytes(), closing.request()))
    ending.start()
    with pytest.raises(BuildFailed, match="is stopping"):
        package.build(Mock())
    ending.join()
    assert package.find() is None
