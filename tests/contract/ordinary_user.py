"""Runs tests once more as a user without rights, where the tests run as root."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

NOBODY = 65534
_ROOT = Path(__file__).parents[2]

as_root_only = pytest.mark.skipif(
    os.geteuid() != 0, reason="the suite runs as an ordinary user already"
)


def run_as_nobody(*arguments: str, timeout: float | None = None) -> None:
    """Run pytest with `arguments`; its failures are the caller's. Skips where such a user has no
    interpreter."""
    python = interpreter_of_nobody()
    if not python:
        pytest.skip("no interpreter of this version that another user may run")
    # Not below pytest's own directory, which other runs close to other users.
    base = tempfile.mkdtemp(prefix="trainshed-nobody-")
    os.chown(base, NOBODY, NOBODY)
    libraries = Path(pytest.__file__).parents[1]
    try:
        done = subprocess.run(
            [python, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={base}/t", *arguments],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            check=False,
            cwd=_ROOT,
            env={
                "PATH": os.defpath,
                "PYTHONPATH": f"{_ROOT}/src:{libraries}",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    finally:
        shutil.rmtree(base)
    assert done.returncode == 0, done.stdout[-6000:]


def interpreter_of_nobody() -> str:
    """An interpreter of this version that such a user may run; \"\" if there is none."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, shutil.which(name, path="/usr/bin:/usr/local/bin")):
        if candidate:
            try:
                code = "import sys; print(sys.version_info[:2])"
                done = subprocess.run(
                    [candidate, "-c", code],
                    user=NOBODY,
                    group=NOBODY,
                    check=False,
                    capture_output=True,
                    cwd="/",
                    text=True,
                )
            except OSError:
                continue
            if done.stdout.strip() == str(sys.version_info[:2]):
                return candidate
    return ""
