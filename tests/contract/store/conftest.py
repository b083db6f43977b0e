"""Every store implementation that the contract tests cover."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.inline_store import open_inline
from trainshed.store.sqlite.database import Store, open_database

Reopen = Callable[[], Store]


@pytest.fixture(params=["sqlite", "inline"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    """A function that opens the test's store. A further call closes and reopens it."""
    opened: list[Store] = []

    def open_again() -> Store:
        for store in opened:
            store.close()
        opened.append(open_inline() if request.param == "inline" else open_database(tmp_path / "data"))
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


@pytest.fixture
def store(reopen: Reopen) -> Store:
    return reopen()
