"""A Python with PyTorch for tests: the service's own runtime, built once in the tests' cache.

TRAINSHED_TEST_TORCH_PYTHON names another one, with torch 2.13.0 and NumPy.
"""

import asyncio
import fcntl
import os
import time
from pathlib import Path

from tests.contract.runtimes.conftest import Objects
from tests.e2e.running import CACHE
from trainshed.core.runtime import RuntimeChoice
from trainshed.runtimes.service import LocalRuntimes

IMAGE = "us-docker.pkg.dev/vertex-ai/training/pytorch-cpu.2-4.py310:latest"
"""A prebuilt image that it stands for."""


def torch_python() -> Path:
    """The interpreter. The first of several test processes builds it, in about a minute, and the others
    wait."""
    if given := os.environ.get("TRAINSHED_TEST_TORCH_PYTHON"):
        return Path(given)
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "torch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runtimes = LocalRuntimes(CACHE, Objects(), now=time.monotonic_ns)
        try:
            choice = runtimes.catalog.for_image(IMAGE)
            assert isinstance(choice, RuntimeChoice), choice
            prepared = asyncio.run(runtimes.prepare(choice, ()))
        finally:
            runtimes.close()
    return Path(prepared.template) / "bin" / "python3"
