"""A fresh service per test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.api.house import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    built = House(tmp_path)
    yield built
    built.close()
