"""Search of a text in the logs of all jobs that the visitor may read."""

import re
from unittest.mock import AsyncMock

import pytest

from tests.console.browser import HTML, Browser, ConsoleService, text_of
from tests.console.test_pages import EVIL, submit
from tests.contract.api.api_service import SECOND


async def job_with_output(service: ConsoleService, name: str, *lines: str, stream: str = "o") -> str:
    """Return the uid of a running job that has printed these lines, one per second."""
    uid = await submit(service, displayName=name)
    await service.run(f"projects/p1/locations/us-central1/customJobs/{uid}")
    entries = [(service.clock + n, line) for n, line in enumerate(lines)]
    service.write_log(int(uid), "workerpool0-0", *entries, stream=stream)
    return uid


async def test_log_search_finds_a_text_in_all_jobs(service: ConsoleService, browser: Browser) -> None:
    first = await job_with_output(service, "diverged", "loss: 0.5", "loss: NaN", "WARNING: nan in a gradient")
    await job_with_output(service, "fine", "loss: 0.5")
    service.clock += 7200 * SECOND
    await job_with_output(service, "crashed", "a.b is nan", stream="e")
    service.clock += 10 * SECOND
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
    await job_with_output(service, "many", *(f"nan {n}" for n in range(201)))
    service.clock += 10 * SECOND
    assert "nan 200" in text_of(await browser.get("/logs?search=nan&since=1h"))
    never_up = await submit(service, displayName="never up")
    service.write_log(int(never_up), "workerpool0-0", (service.clock, "no module of that name"))
    assert "never up" in text_of(await browser.get("/logs?search=no+module"))


async def test_log_search_continues_in_steps_of_a_few_jobs(
    service: ConsoleService, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each response has a limited cost, for any number of jobs and any length of logs and lines."""
    monkeypatch.setattr("trainshed_console.pages.logs._CONFIRM_INTERVAL", 10)
    long = await job_with_output(service, "long", "needle", *("x" * 50 for _ in range(21_000)))
    await job_with_output(service, "wide", f"{'é' * 100_000}NEEDLE{'<' * 100_000}")
    for number in range(12):
        await job_with_output(service, f"n{number}", "hay")
    service.clock += 10 * SECOND
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
    assert "10 jobs searched Search older jobs" in seen, (
        "after some time, the visitor must confirm to continue"
    )
    assert "wide 1 line" in seen
    assert "long" not in seen, long


async def test_log_search_ends_when_the_browser_disconnects(
    service: ConsoleService, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await job_with_output(service, "one", "needle")
    searched = AsyncMock(return_value=None)
    monkeypatch.setattr("trainshed_console.pages.logs._hits", searched)
    await browser.get("/logs?search=needle")
    searched.assert_awaited_once()
    async with service.events("/logs?search=needle", [HTML, *browser.credentials]):
        pass  # The browser disconnects immediately.
    searched.assert_awaited_once()


@pytest.mark.parametrize("search", ["", "&search=LINE"])
async def test_log_pages_with_long_lines_are_limited_in_bytes_and_omit_no_line(
    service: ConsoleService, browser: Browser, search: str
) -> None:
    uid = await job_with_output(service, "long", *(f"line {n} {'x' * 60_000}" for n in range(100)))
    service.clock += 200 * SECOND
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


async def test_log_search_excludes_unreadable_jobs_and_escapes_html(
    service: ConsoleService, guest: Browser
) -> None:
    await job_with_output(service, EVIL[:100], f"secret {EVIL}")
    service.clock += 10 * SECOND
    owner = Browser(service)
    await owner.sign_in(token=service.token)
    body = (await owner.get("/logs?search=%3Cscript%3E")).body
    assert b"<mark>&lt;script&gt;</mark>" in body and b"<script>alert" not in body
    for path in ("/logs?search=secret", "/logs?search=secret&project=-"):
        assert "All 0 jobs were searched" in text_of(await guest.get(path))
