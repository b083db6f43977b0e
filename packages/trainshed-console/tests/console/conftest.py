"""Fixtures: a new service with a console for each test, and simulated browsers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.browser import Browser, ConsoleService
from tests.people import add_user


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ConsoleService]:
    built = ConsoleService(tmp_path)
    yield built
    built.close()


@pytest.fixture
async def browser(service: ConsoleService) -> Browser:
    """A browser that is signed in as the service's owner."""
    made = Browser(service)
    answer = await made.sign_in(token=service.token)
    assert answer.status == 200, answer.body
    return made


@pytest.fixture
async def guest(service: ConsoleService) -> Browser:
    """A browser of a user who only has a role in the project p2."""
    made = Browser(service)
    await made.sign_in(token=add_user(service.tokens, "g@example.com", project="p2"))
    return made
