"""What needs rights over the program's processes, once more as a user without any (SPEC §3: root or not)."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.contract.engines.test_ordinary_user import NOBODY, ROOT, interpreter

HERE = Path(__file__).parent
CHOSEN = ("test_expel.py", "test_orders.py", "test_stall.py", "test_memory_limit.py")


@pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as an ordinary user already")
def test_the_suite_as_an_ordinary_user() -> None:
    python = interpreter()
    if not python:
        pytest.skip("no interpreter of this version that another user may run")
    base = tempfile.mkdtemp(prefix="trainshed-nobody-")
    os.chown(base, NOBODY, NOBODY)
    libraries = Path(pytest.__file__).parents[1]
    arguments = ["-p", "no:cacheprovider", f"--basetemp={base}/t", "-k", "not session"]
    try:
        done = subprocess.run(
            [python, "-m", "pytest", *arguments, *(str(HERE / name) for name in CHOSEN)],
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
            timeout=300,
        )
    finally:
        shutil.rmtree(base)
    assert done.returncode == 0, done.stdout[-6000:]
