"""What the tests of this folder share."""

from pathlib import Path

import pytest

from tests import torch_runtime
from tests.e2e.nursery import Nursery
from tests.reduction.programs import environment

LOADED = ("torch", "torch.distributed", "torch._dynamo", "torch.utils.data", "numpy")


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """A Python interpreter with PyTorch and NumPy."""
    return torch_runtime.torch_python()


@pytest.fixture(scope="session")
def torch_nursery(torch_python: Path) -> Nursery:
    """Forks ranks that have PyTorch loaded, which is half of what they compute otherwise."""
    alone = environment(Path("/"), TORCH_DEVICE_BACKEND_AUTOLOAD="0", OPENBLAS_NUM_THREADS="1")
    del alone["PYTHONPATH"]
    return Nursery(LOADED, torch_python, alone)
