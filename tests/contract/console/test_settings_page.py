"""The page of the settings: every one with its value and who set it, for who may see them."""

import pytest
from msgspec.structs import replace

from tests.contract.console.browser import Browser, ConsoleHouse, text_of
from tests.people import known
from trainshed.serve.setting_facts import described
from trainshed.serve.settings import Origin, Settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def house(house: ConsoleHouse) -> ConsoleHouse:
    """Of an operator who has set something."""
    origins = {
        "grace": Origin("file", "/etc/trainshed.toml"),
        "port": Origin("option", "--port"),
    }
    text = described(Settings(grace=5, port=8090), origins)
    settings = replace(house.services.settings, configured=text)
    house.services = replace(house.services, settings=settings)
    house.new_console()
    return house


async def test_each_setting_is_there_with_its_value_and_its_source(browser: Browser) -> None:
    page = text_of(await browser.get("/settings"))
    for name in ("grace", "port", "idle_stop", "log_format"):
        assert name in page
    assert "Seconds between SIGTERM and SIGKILL of a replica 5 file /etc/trainshed.toml" in page
    assert "default 30" in page


async def test_who_works_in_one_project_sees_no_settings(house: ConsoleHouse) -> None:
    guest = Browser(house)
    token = known(house.tokens, "guest@example.com", project="p2")
    await guest.sign_in(token=token)
    page = await guest.get("/settings")
    assert page.status == 200
    assert "/etc/trainshed.toml" not in page.body.decode()
    assert (await house.call("GET", "/trainshed/v1/settings", token=token)).status == 403
