"""Fixtures: a new service for each test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.contract.api.api_service import ApiService


@pytest.fixture(scope="package", autouse=True)
async def shared_event_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Keep one event loop for all tests of this folder. On a busy machine gRPC reports ended calls
    even after its server and channels are closed. If its loop is closed by then, the test that
    is running fails."""
    yield


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ApiService]:
    """Use the class that the test module sets as `SERVICE_CLASS`, or else `ApiService`."""
    service_class: type[ApiService] = getattr(cast(Any, request).module, "SERVICE_CLASS", ApiService)
    built = service_class(tmp_path)
    yield built
    built.close()
