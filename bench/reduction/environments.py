"""The environments of the benchmark's programs: a Python with PyTorch, and the installed package, as in the
workers of a job."""

import os
import subprocess
import time
from pathlib import Path

from bench.reduction.network import CannotRun
from trainshed.runtimes.inventory import Inventory
from trainshed.runtimes.port import BuildFailed
from trainshed.runtimes.reduction import unpack
from trainshed.serve.settings import default_cache

VERSION = "2.13"
"""Version of the PyTorch runtime."""


def python_with_torch() -> Path:
    """Return the interpreter of the service's own PyTorch runtime. If the cache does not contain the runtime,
    it is built, which takes minutes. Raises CannotRun."""
    try:
        offer = Inventory(default_cache(), now=time.monotonic_ns).build("pytorch", print, VERSION)
    except BuildFailed as failure:
        raise CannotRun(
            f"no Python with PyTorch was found; set one with --python. Building it failed: {failure}"
        ) from failure
    assert offer.built is not None
    return offer.built / "template" / "bin" / "python"


def package(directory: Path, python: Path) -> None:
    """Install the distribution, including its C part, into a directory for PYTHONPATH. Raises CannotRun."""
    unpack(directory)
    build = subprocess.run(
        [str(python), "-m", "trainshed_reduction.native"],
        env={**os.environ, "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        check=False,
    )
    if build.returncode:
        raise CannotRun(f"{python} cannot use the package: {build.stderr.strip()[-500:]}")
