"""The whole suite once more as a user without rights, where the tests run as root."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

NOBODY = 65534
HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def interpreter() -> str:
    """An interpreter of this version that such a user may run."""
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


@pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as an ordinary user already")
def test_the_suite_as_an_ordinary_user() -> None:
    """SPEC §3: root or not."""
    python = interpreter()
    if not python:
        pytest.skip("no interpreter of this version that another user may run")
    # Not below pytest's own directory, which other runs close to other users.
    base = tempfile.mkdtemp(prefix="trainshed-nobody-")
    os.chown(base, NOBODY, NOBODY)
    libraries = Path(pytest.__file__).parents[1]
    done = subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={base}/t", str(HERE)],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        check=False,
        cwd=ROOT,
        env={
            "PATH": os.defpath,
            "PYTHONPATH": f"{ROOT}/src:{libraries}",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    shutil.rmtree(base)
