"""What the tests of this folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import torch_runtime
from tests.e2e.nursery import Nursery
from tests.reduction import native_library
from tests.reduction.programs import environment
from trainshed_reduction.variables import NATIVE

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


@pytest.fixture(scope="session", autouse=True)
def part_in_c() -> Iterator[None]:
    """Workers here, and what they and reducers are started as, have the part in C."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(NATIVE, str(native_library.shared().path.parent))
        yield
