"""Fixtures of the tests of reducers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import torch_runtime
from tests.e2e.fork_server import ForkServer
from tests.reduction import native_library
from tests.reduction.programs import environment
from trainshed_reduction.variables import NATIVE

LOADED = ("torch", "torch.distributed", "torch._dynamo", "torch.utils.data", "numpy")


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """Return a Python interpreter with PyTorch and NumPy."""
    return torch_runtime.torch_python()


@pytest.fixture(scope="session")
def torch_fork_server(torch_python: Path) -> ForkServer:
    """Return a fork server that forks ranks with PyTorch imported. This halves their processor time."""
    alone = environment(Path("/"), TORCH_DEVICE_BACKEND_AUTOLOAD="0", OPENBLAS_NUM_THREADS="1")
    del alone["PYTHONPATH"]
    return ForkServer(LOADED, torch_python, alone)


@pytest.fixture(scope="session", autouse=True)
def c_library() -> Iterator[None]:
    """Provide the C library to the workers of these tests, and to all processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(NATIVE, str(native_library.shared_library().path.parent))
        yield
