"""What the tests of this folder share."""

from pathlib import Path

import pytest

from tests import torch_runtime


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """A Python interpreter with PyTorch and NumPy."""
    return torch_runtime.torch_python()
