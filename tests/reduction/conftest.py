"""What the tests of this folder share."""

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


@pytest.fixture(scope="session")
def native_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the part in C was built."""
    directory = tmp_path_factory.mktemp("native")
    native_library.build(directory)
    return directory


@pytest.fixture
def with_c(native_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reducers and workers that are started have the part in C."""
    monkeypatch.setenv(NATIVE, str(native_directory))


@pytest.fixture(params=["C", "Python"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have it, or do without."""
    if request.param == "C":
        request.getfixturevalue("with_c")
    else:
        monkeypatch.setenv(NATIVE, "off")
