"""A Python with PyTorch for tests, built once in the tests' cache.

It has only PyTorch and NumPy, with the versions of the service's own runtime. `./dev test-all` uses that
runtime itself, which takes another minute of CPU time. TRAINSHED_TEST_TORCH_PYTHON selects another Python,
with torch 2.13.0 and NumPy.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from tests.e2e.packages import Objects
from tests.e2e.running import CACHE
from tests.soaks import SOAKS
from trainshed.core.runtime import RuntimeChoice
from trainshed.runtimes.families import format_minor, sheet_of
from trainshed.runtimes.installer import Installer, InstallFailed
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.service import LocalRuntimes

IMAGE = "us-docker.pkg.dev/vertex-ai/training/pytorch-cpu.2-4.py310:latest"
"""A prebuilt image that selects the runtime."""


def torch_python() -> Path:
    """Return the interpreter. The first of several test processes builds it while the others wait."""
    if python := os.environ.get("TRAINSHED_TEST_TORCH_PYTHON"):
        return Path(python)
    if SOAKS:
        return service_python()
    with _lock():
        return _build_own_runtime()


def service_python() -> Path:
    """Return the interpreter of the runtime in which the service runs jobs with the image `IMAGE`."""
    with _lock():
        runtimes = LocalRuntimes(CACHE, Objects(), now=time.monotonic_ns)
        try:
            choice = runtimes.catalog.for_image(IMAGE)
            assert isinstance(choice, RuntimeChoice), choice
            prepared = asyncio.run(runtimes.prepare(choice, ()))
        finally:
            runtimes.close()
        return Path(prepared.template) / "bin" / "python3"


@contextlib.contextmanager
def _lock() -> Generator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "torch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_own_runtime() -> Path:
    sheet = sheet_of("pytorch")
    assert sheet is not None
    release = sheet.releases[0]
    pins = sheet.lock(release)
    interpreters = Interpreters()
    interpreter = interpreters.get(interpreters.usual())
    assert interpreter is not None
    version = format_minor(interpreter.minor)
    name = f"{version}-{hashlib.sha256(pins.read_bytes()).hexdigest()[:16]}"
    place, draft = CACHE / "torch" / name, CACHE / "torch" / "draft"
    python = place / "bin" / "python3"
    if not place.exists():
        shutil.rmtree(draft, ignore_errors=True)
        subprocess.run([interpreter.executable, "-m", "venv", "--without-pip", draft], check=True)
        site = draft / "lib" / f"python{version}" / "site-packages"
        _install(draft / "bin" / "python3", site, pins, release.first)
        draft.rename(place)
        # Compile now: ranks that start together would all compile it.
        subprocess.run([python, "-c", "import numpy, torch.distributed"], check=True)
    return python


def _install(python: Path, site: Path, pins: Path, first: Sequence[str]) -> None:
    """Install like the service: from PyTorch's own index, or from the configured indexes if that one is
    unreachable.
    """
    installer = Installer(CACHE / "uv")
    requirements = ("--constraint", str(pins), "torch", "numpy")
    if not installer.has_indexes:
        with contextlib.suppress(InstallFailed):
            installer.install(python, site, (*first, *requirements), print, linked=True)
            return
    installer.install(python, site, requirements, print, linked=True)
