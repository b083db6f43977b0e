"""A fresh service per test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.contract.api.house import House


@pytest.fixture(scope="package", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Keep one event loop for all tests of this folder. On a busy machine gRPC reports what is over even
    after its server and its channels are closed, and fails the test that runs by then if the loop is gone."""
    yield


@pytest.fixture
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """Of the class that a file calls `HOUSE`, if it has one of its own."""
    made: type[House] = getattr(cast(Any, request).module, "HOUSE", House)
    built = made(tmp_path)
    yield built
    built.close()
