import pytest

from tests.ports import free_port


@pytest.fixture
def port() -> int:
    """Settings for the hub of an engine."""
    return free_port()
