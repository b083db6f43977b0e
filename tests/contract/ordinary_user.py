"""Runs tests once more as a user without rights, where the tests run as root."""

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
        done = execute(
            *(python, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={base}/t", *arguments),
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd=_ROOT,
            env={
                "PATH": os.defpath,
                "PYTHONPATH": search_path(libraries),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            timeout=timeout,
        )
    finally:
        shutil.rmtree(base)
    assert done.returncode == 0, done.stdout[-6000:]


_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"


def interpreter_of_nobody() -> str:
    """An interpreter of this version that such a user may run; \"\" if there is none."""
    for candidate in (sys.executable, shutil.which(_NAME, path="/usr/bin:/usr/local/bin")):
        if candidate and _may_be_run(candidate):
            return candidate
    copied = str(_copy_of_own())
    return copied if _may_be_run(copied) else ""


def _may_be_run(candidate: str) -> bool:
    try:
        done = execute(
            *(candidate, "-c", "import sys; print(sys.version_info[:2])"),
            user=NOBODY,
            group=NOBODY,
            cwd="/",
        )
    except OSError:
        return False
    return done.stdout.strip() == str(sys.version_info[:2])


def _copy_of_own() -> Path:
    """The interpreter of these tests where it may be run by everybody who may read this checkout, made once:
    it may lie in a home that others may not enter."""
    place = _ROOT / "build" / "interpreters" / sys.version.partition(" ")[0]
    place.parent.mkdir(parents=True, exist_ok=True)
    # A service that these tests have started may have made it, for itself alone.
    place.parents[1].chmod(0o755)
    with (place.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            draft = place.with_name("draft")
            shutil.rmtree(draft, ignore_errors=True)
            (draft / "bin").mkdir(parents=True)
            own = Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()
            # Its library may be a shared one, and is looked for where it was.
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
