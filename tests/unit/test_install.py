"""Installation of packages by ./dev (tools/install.py)."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from tools.install import find_locked

from tests.commands import execute
from tests.e2e.running import ROOT


def test_run_and_dev_lock_files_contain_equal_versions_of_common_packages() -> None:
    """./dev installs the run lock file first, and compiles the modules of these packages while it installs
    the rest."""
    run, dev = ((ROOT / "locks" / name).read_text() for name in ("run.txt", "dev.txt"))
    assert "--hash" in find_locked("uv", run)
    names = [line.partition("==")[0] for line in run.splitlines() if not line.startswith(" ")]
    assert [name for name in names if find_locked(name, dev) != find_locked(name, run)] == []


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 15, 2)])
def test_unsupported_python_version_is_rejected(tmp_path: Path, version: tuple[int, int, int]) -> None:
    """./dev fails immediately instead of showing compiler errors minutes later."""
    shutil.copy(ROOT / "dev", tmp_path)
    (tmp_path / "locks").mkdir()
    shutil.copy(ROOT / "locks" / "run.txt", tmp_path / "locks")
    python = tmp_path / "python"
    pretend = f"import sys; sys.version_info = {version}; exec(sys.argv[1])"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{pretend}' \"$2\"\n")
    python.chmod(0o755)
    done = execute("sh", "dev", "setup", cwd=tmp_path, env={**os.environ, "PYTHON": str(python)})
    assert done.returncode == 1
    assert (
        "trainshed needs Python 3.11 to 3.14, with pip and its complete standard library. "
        f"PYTHON={python} is not suitable." in done.stderr
    )
    assert not (tmp_path / ".venv").exists()
