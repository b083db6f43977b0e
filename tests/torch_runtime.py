"""A Python with PyTorch for tests, built once in the tests' cache: PyTorch and NumPy alone, as the lock of
the service's own runtime has them. `./dev test-all` takes that runtime itself, a minute of a processor more.

TRAINSHED_TEST_TORCH_PYTHON names another one, with torch 2.13.0 and NumPy.
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
"""A prebuilt image that it stands for."""


def torch_python() -> Path:
    """The interpreter. The first of several test processes builds it, and the others wait."""
    if python := os.environ.get("TRAINSHED_TEST_TORCH_PYTHON"):
        return Path(python)
    if SOAKS:
        return service_python()
    with _locked():
        return _alone()


def service_python() -> Path:
    """That of the runtime in which the service runs jobs that ask for `IMAGE`."""
    with _locked():
        runtimes = LocalRuntimes(CACHE, Objects(), now=time.monotonic_ns)
        try:
            choice = runtimes.catalog.for_image(IMAGE)
            assert isinstance(choice, RuntimeChoice), choice
            prepared = asyncio.run(runtimes.prepare(choice, ()))
        finally:
            runtimes.close()
        return Path(prepared.template) / "bin" / "python3"


@contextlib.contextmanager
def _locked() -> Generator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "torch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _alone() -> Path:
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
        # Ranks that begin at once would each compile it for themselves.
        subprocess.run([python, "-c", "import numpy, torch.distributed"], check=True)
    return python


def _install(python: Path, site: Path, pins: Path, first: Sequence[str]) -> None:
    """As the service does: from PyTorch's own index, or where that is not to be had from the usual ones."""
    installer = Installer(CACHE / "uv")
    requirements = ("--constraint", str(pins), "torch", "numpy")
    if not installer.has_indexes:
        with contextlib.suppress(InstallFailed):
            installer.install(python, site, (*first, *requirements), print, linked=True)
            return
    installer.install(python, site, requirements, print, linked=True)
