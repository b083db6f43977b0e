"""A fresh service per test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.contract.api.house import House


@pytest.fixture
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """Of the class that a file calls `HOUSE`, if it has one of its own."""
    made: type[House] = getattr(cast(Any, request).module, "HOUSE", House)
    built = made(tmp_path)
    yield built
    built.close()
