"""A fresh service with a console per test, and a browser that does what it is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.console.browser import Browser, ConsoleHouse


@pytest.fixture
def house(tmp_path: Path) -> Iterator[ConsoleHouse]:
    built = ConsoleHouse(tmp_path)
    yield built
    built.close()


@pytest.fixture
async def browser(house: ConsoleHouse) -> Browser:
    """Signed in as the owner."""
    made = Browser(house)
    answer = await made.sign_in(token=house.token)
    assert answer.status == 200, answer.body
    return made
