"""Fixtures: a new service with a console for each test, and simulated browsers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.browser import Browser, ConsoleHouse
from tests.people import known


@pytest.fixture
def house(tmp_path: Path) -> Iterator[ConsoleHouse]:
    built = ConsoleHouse(tmp_path)
    yield built
    built.close()


@pytest.fixture
async def browser(house: ConsoleHouse) -> Browser:
    """A browser that is signed in as the owner."""
    made = Browser(house)
    answer = await made.sign_in(token=house.token)
    assert answer.status == 200, answer.body
    return made


@pytest.fixture
async def guest(house: ConsoleHouse) -> Browser:
    """A browser of a user who only has a role in the project p2."""
    made = Browser(house)
    await made.sign_in(token=known(house.tokens, "g@example.com", project="p2"))
    return made
