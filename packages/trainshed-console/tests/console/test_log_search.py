"""Which jobs printed a text, and where; nothing of logs that one may not read."""

import re
from unittest.mock import AsyncMock

import pytest

from tests.console.browser import HTML, Browser, ConsoleHouse, text_of
from tests.console.test_pages import EVIL, submit
from tests.contract.api.house import SECOND


async def printed(house: ConsoleHouse, name: str, *lines: str, stream: str = "o") -> str:
    """The uid of a job that runs and has printed these lines, one a second."""
    uid = await submit(house, displayName=name)
    await house.run(f"projects/p1/locations/us-central1/customJobs/{uid}")
    entries = [(house.clock + n, line) for n, line in enumerate(lines)]
    house.write_log(int(uid), "workerpool0-0", *entries, stream=stream)
    return uid


async def test_a_text_is_found_in_the_logs_of_all_jobs(
    house: ConsoleHouse, browser: Browser
) -> None:
    first = await printed(house, "diverged", "loss: 0.5", "loss: NaN", "WARNING: nan in a gradient")
    await printed(house, "fine", "loss: 0.5")
    house.clock += 7200 * SECOND
    await printed(house, "crashed", "a.b is nan", stream="e")
    house.clock += 10 * SECOND
    page = await browser.get("/logs?search=NaN")
    text = text_of(page)
    assert "fine" not in text
    assert text.index("crashed") < text.index("diverged 2 lines, 1 warning")
    assert "Errors 1 Warnings 1 Other 1" in text and "All 3 jobs were searched" in text
    links = re.findall(rf'href="(/jobs/{first}/logs\?line=[^"]+)"', page.body.decode())
    assert len(links) == 2 and (await browser.get(links[0])).status == 200
    assert "diverged" not in text_of(await browser.get("/logs?search=NaN&severity=ERROR"))
    assert "diverged" not in text_of(await browser.get("/logs?search=nan&since=1h"))
    assert "diverged" not in text_of(await browser.get("/logs?search=a.b"))
    assert "All 3 jobs" in text_of(await browser.get("/logs?search=(((.*&walked=nonsense"))
    assert "searched" not in text_of(await browser.get("/logs?search=+"))
    await printed(house, "many", *(f"nan {n}" for n in range(201)))
    house.clock += 10 * SECOND
    assert "nan 200" in text_of(await browser.get("/logs?search=nan&since=1h"))
    never_up = await submit(house, displayName="never up")
    house.write_log(int(never_up), "workerpool0-0", (house.clock, "no module of that name"))
    assert "never up" in text_of(await browser.get("/logs?search=no+module"))


async def test_each_answer_searches_a_few_jobs_and_asks_for_the_next(
    house: ConsoleHouse, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many jobs there are, and however long their logs and lines."""
    monkeypatch.setattr("trainshed_console.pages.logs._CONFIRM_INTERVAL", 10)
    long = await printed(house, "long", "needle", *("x" * 50 for _ in range(21_000)))
    await printed(house, "wide", f"{'é' * 100_000}NEEDLE{'<' * 100_000}")
    for number in range(12):
        await printed(house, f"n{number}", "hay")
    house.clock += 10 * SECOND
    monkeypatch.setattr("trainshed_console.pages.logs._TIME_LIMIT", 0)
    path = "/logs?search=needle"
    seen, answers = "", 0
    while path:
        answer = await browser.get(path)
        assert len(answer.body) < 20_000
        body = answer.body.decode()
        assert ("hx-trigger" in body) == ("searching older jobs" in body)
        seen += text_of(answer)
        answers += 1
        following = re.search(r'hx-get="([^"]+)"', body)
        path = following[1].replace("&amp;", "&") if following else ""
    assert answers == 3, "five jobs at a time"
    assert "10 jobs searched Search older jobs" in seen, "after a while the reader is asked"
    assert "wide 1 line" in seen
    assert "long" not in seen, long


async def test_a_search_ends_when_its_reader_goes_away(
    house: ConsoleHouse, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await printed(house, "one", "needle")
    searched = AsyncMock(return_value=None)
    monkeypatch.setattr("trainshed_console.pages.logs._hits", searched)
    await browser.get("/logs?search=needle")
    searched.assert_awaited_once()
    async with house.events("/logs?search=needle", [HTML, *browser.credentials]):
        pass  # It hangs up at once.
    searched.assert_awaited_once()


@pytest.mark.parametrize("search", ["", "&search=LINE"])
async def test_a_page_of_long_lines_has_fewer_and_none_is_left_out(
    house: ConsoleHouse, browser: Browser, search: str
) -> None:
    uid = await printed(house, "long", *(f"line {n} {'x' * 60_000}" for n in range(100)))
    house.clock += 200 * SECOND
    seen: list[str] = []
    before = ""
    while not seen or before:
        answer = await browser.get(f"/jobs/{uid}/lines?limit=2000{search}&before={before}")
        assert len(answer.body) < 3_000_000
        page = answer.json
        seen = [line[3].partition(" x")[0] for line in page["lines"]] + seen
        before = page["earlier"]
    assert seen == [f"line {n}" for n in range(100)]
    whole = (await browser.get(f"/jobs/{uid}/log.txt")).body.decode()
    assert [f"line {n}" for n in range(100)] == re.findall("line [0-9]+", whole)


async def test_nothing_of_logs_that_one_may_not_read_is_shown(
    house: ConsoleHouse, guest: Browser
) -> None:
    await printed(house, EVIL[:100], f"secret {EVIL}")
    house.clock += 10 * SECOND
    owner = Browser(house)
    await owner.sign_in(token=house.token)
    body = (await owner.get("/logs?search=%3Cscript%3E")).body
    assert b"<mark>&lt;script&gt;</mark>" in body and b"<script>alert" not in body
    for path in ("/logs?search=secret", "/logs?search=secret&project=-"):
        assert "All 0 jobs were searched" in text_of(await guest.get(path))
