import pytest

from tests.ports import free_port


@pytest.fixture
def port() -> int:
    """For the hub of an engine."""
    return free_port()
