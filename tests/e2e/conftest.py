"""One service for the whole end-to-end run; tests that kill it start their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running import Service, running


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("service")) as started:
        yield started


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"
