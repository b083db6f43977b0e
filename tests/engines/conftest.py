"""A conformance suite whose tests mostly repeat another one's has an attribute `in_short`: only tests with
one of these words in their names are run by `./dev test`, all others by `./dev test-all`."""

import pytest

from tests.engines.conformance.suite import Conformance
from tests.ports import free_port


@pytest.fixture
def port() -> int:
    """For the hub of an engine."""
    return free_port()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        suite = getattr(item, "cls", None)
        words = getattr(suite, "in_short", None)
        if words is None or not hasattr(Conformance, item.name):
            continue
        if not any(word in item.name for word in words):
            item.add_marker(pytest.mark.soak)
