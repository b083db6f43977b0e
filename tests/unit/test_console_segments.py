"""Where the console's pages are, as a service knows it before it has loaded them."""

from trainshed.console.facts import FIRST_SEGMENTS
from trainshed.console.routes import ACTIONS, PAGES, STREAMS


def test_they_are_those_of_all_its_pages() -> None:
    own = {"", "assets", "events", "login", "logout", "signed-in"}
    served = {
        template.split("/")[1] for table in (PAGES, ACTIONS, STREAMS) for _, template in table
    }
    assert own | served == FIRST_SEGMENTS
