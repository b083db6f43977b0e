"""Run tests again as a user without rights if the test run itself is root."""

import fcntl
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.commands import execute
from tests.sources import search_path

NOBODY = 65534
_ROOT = Path(__file__).parents[2]

as_root_only = pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as an ordinary user already")


def run_as_nobody(*arguments: str, timeout: float | None = None) -> None:
    """Run pytest with `arguments` as that user, and fail with it. Skip if the user has no usable
    interpreter."""
    python = interpreter_of_nobody()
    if not python:
        pytest.skip("no interpreter of this version that another user may run")
    # This directory is outside pytest's own, which other test runs may make inaccessible to other users.
    base = tempfile.mkdtemp(prefix="trainshed-nobody-")
    os.chown(base, NOBODY, NOBODY)
    libraries = Path(pytest.__file__).parents[1]
    try:
        done = execute(
            *(python, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={base}/t", *arguments),
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd=_ROOT,
            env={"PATH": os.defpath, "PYTHONPATH": search_path(libraries), "PYTHONDONTWRITEBYTECODE": "1"},
            timeout=timeout,
        )
    finally:
        shutil.rmtree(base)
    assert done.returncode == 0, done.stdout[-6000:]


_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"


def interpreter_of_nobody() -> str:
    """Return an interpreter of this version that the user may run; "" if none exists."""
    for candidate in (sys.executable, shutil.which(_NAME, path="/usr/bin:/usr/local/bin")):
        if candidate and _may_be_run(candidate):
            return candidate
    copied = str(_copy_of_own())
    return copied if _may_be_run(copied) else ""


def _may_be_run(candidate: str) -> bool:
    try:
        done = execute(
            *(candidate, "-c", "import sys; print(sys.version_info[:2])"), user=NOBODY, group=NOBODY, cwd="/"
        )
    except OSError:
        return False
    return done.stdout.strip() == str(sys.version_info[:2])


def _copy_of_own() -> Path:
    """Copy the interpreter of these tests to a place that every reader of this checkout may run.
    The original may be in a private home directory. The copy is made once."""
    place = _ROOT / "build" / "interpreters" / sys.version.partition(" ")[0]
    place.parent.mkdir(parents=True, exist_ok=True)
    # A service started by these tests may have created this directory with private permissions.
    place.parents[1].chmod(0o755)
    with (place.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            draft = place.with_name("draft")
            shutil.rmtree(draft, ignore_errors=True)
            (draft / "bin").mkdir(parents=True)
            own = Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()
            # The interpreter may use a shared library, which it looks up at its original place.
            before = os.fsencode(f"{sys.base_prefix}/lib") + b"\0"
            after = b"$ORIGIN/../lib".ljust(len(before), b"\0")
            (draft / "bin" / _NAME).write_bytes(own.read_bytes().replace(before, after))
            (draft / "bin" / _NAME).chmod(0o755)
            (draft / "bin" / "python3").symlink_to(_NAME)
            left_out = shutil.ignore_patterns("test", "idlelib", "site-packages", "config-*")
            library = Path(sys.base_prefix) / "lib"
            shutil.copytree(library / _NAME, draft / "lib" / _NAME, ignore=left_out)
            for shared in library.glob("libpython*.so*"):
                shutil.copy2(shared, draft / "lib")
            draft.rename(place)
    return place / "bin" / _NAME
