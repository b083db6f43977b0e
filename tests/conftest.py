"""What holds for all tests: event loops are those that the service runs on.

Virtual time brings a loop of its own (`tests.sim.virtual`). Programs that tests start choose for themselves.
"""

import asyncio
from pathlib import Path

import hypothesis
import pytest
import uvloop

# The only way to reach the loops that pytest plug-ins and libraries make; until Python 3.16.
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # pyright: ignore[reportDeprecated] - see above

# How long an example takes is told by the tests beside it.
hypothesis.settings.register_profile("no-deadline", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("no-deadline")

LONGEST = ("reduction", "programs", "e2e", "contract")
"""Folders of tests in the order in which they begin: the longest first, so that at the end of a run none of
several workers is left alone with one of them. The others come after these."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path))


def _rank(path: Path) -> int:
    folder = path.relative_to(Path(__file__).parent).parts[0]
    return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)
