"""The console for a team: roles and tokens by its forms, who did what, and no more than what one may."""

import asyncio
import re
from typing import Any

import pytest

from tests.console.browser import Browser, ConsoleHouse, text_of
from tests.console.test_overview import holding
from tests.console.test_pages import submit
from tests.contract.api.house import SECOND, START
from tests.people import known
from tests.waiting import until
from trainshed.core.lifecycle.events import JobAdmitted
from trainshed.core.names import JobUid
from trainshed_console.pages import logs

ANA = "ana@corp.example"


async def visitor(house: ConsoleHouse, role: str, project: str = "p1") -> Browser:
    person = Browser(house)
    await person.sign_in(token=known(house.tokens, ANA, role, project))
    return person


async def test_a_role_is_given_and_taken_away(house: ConsoleHouse, browser: Browser) -> None:
    form = {"member": ANA, "role": "roles/aiplatform.viewer", "project": "p1"}
    assert (await browser.post("/team/roles", **form)).status == 303
    page = text_of(await browser.get("/team?project=p1"))
    assert f"user:{ANA} roles/aiplatform.viewer p1" in page
    assert (await browser.post("/team/roles/remove", **form)).status == 303
    assert ANA not in text_of(await browser.get("/team?project=p1"))
    page = text_of(await browser.get("/team/audit?project=p1"))
    assert "owner@trainshed.local" in page and f"added roles/aiplatform.viewer user:{ANA}" in page
    form["role"] = "roles/king"
    assert "roles/king" in text_of(await browser.post("/team/roles", **form))


async def test_a_token_is_shown_once_and_ends_what_it_opened(
    house: ConsoleHouse, browser: Browser
) -> None:
    page = (await browser.post("/team/tokens", email=ANA, days="7")).body.decode()
    [token] = re.findall(r"<code>([A-Za-z0-9_-]{43})</code>", page)
    assert token not in (await browser.get("/team")).body.decode()
    ana = Browser(house)
    await ana.sign_in(token=token)
    assert "You have no role yet" in text_of(await ana.get("/team"))
    [stored] = house.services.access.book.tokens.values()
    assert (await browser.post(f"/team/tokens/{stored.id}/delete")).status == 303
    assert (await ana.get("/team")).status != 200


@pytest.mark.parametrize(("by", "name"), [("user", "owner@trainshed.local"), ("project", "p1")])
async def test_what_was_used_is_summed_up_with_bars(
    house: ConsoleHouse, browser: Browser, by: str, name: str
) -> None:
    await holding(house)
    house.clock += 3600 * SECOND
    page = await browser.get(f"/team?project=p1&by={by}")
    assert f"{name} 2.0 4.0 16.1" in text_of(page)
    assert 'class="fill" width="100.0"' in page.body.decode()


async def test_a_viewer_has_no_buttons_and_other_projects_do_not_show(house: ConsoleHouse) -> None:
    uid = await submit(house)
    viewer = await visitor(house, "roles/aiplatform.viewer")
    page = (await viewer.get(f"/jobs/{uid}")).body.decode()
    assert "Queued" in page
    for action in ("Cancel the job", ">Shell<", ">Drill<", ">Retry<", 'href="/submit', "/nodes"):
        assert action not in page, action
    needs = ", you need roles/ml.jobOwner in p1, which a project owner can grant."
    assert f"To cancel, drill or open a shell{needs}" in page
    creates = ", you need roles/aiplatform.user in p1"
    assert f"To retry or clone{creates}" in page
    jobs = text_of(await viewer.get("/jobs?project=p1"))
    assert f"To submit jobs{creates}" in jobs and f"To retry them{creates}" in jobs
    assert f"To cancel or delete them{needs}" in jobs and "Cancel them" not in jobs
    for path in ("/submit", "/submit/json"):
        form = text_of(await viewer.get(f"{path}?project=p1"))
        assert f"To submit this job{creates}" in form
    assert "Inject the fault" not in text_of(await viewer.get(f"/jobs/{uid}/drills"))
    queue = text_of(await viewer.get("/queue?project=p1"))
    assert "Set a quota" not in queue and "you need roles/owner in p1" in queue
    team = text_of(await viewer.get("/team"))
    assert "you need roles/owner in all projects, which an owner of the service can grant" in team
    for action in ("Grant a role", "Create a token", "Audit", "audit"):
        assert action not in team, action
    assert "Grant a role" in text_of(await (await visitor(house, "roles/owner")).get("/team"))


@pytest.mark.parametrize("path", ["/jobs", "/jobs/{job}"])
async def test_an_open_page_ends_with_the_role_that_showed_it(
    house: ConsoleHouse, path: str
) -> None:
    """As one that is signed out does."""
    uid = await submit(house)
    viewer = await visitor(house, "roles/aiplatform.viewer")
    path = f"/events{path.replace('{job}', uid)}"
    async with house.events(path, viewer.credentials) as events:
        await events.next("parts")
        grant = {"role": "roles/aiplatform.viewer", "member": f"user:{ANA}", "project": "p1"}
        change = {**grant, "remove": True}
        assert (await house.call("POST", "/trainshed/v1/access:change", change)).status == 200
        house.notices.publish(JobUid(int(uid)))
        assert "roles have changed" in (await events.next("gone"))["message"]


async def test_who_waits_for_lines_gets_none_without_the_role(house: ConsoleHouse) -> None:
    uid = await submit(house)
    await house.happen(f"projects/p1/locations/us-central1/customJobs/{uid}", JobAdmitted(()))
    viewer = await visitor(house, "roles/aiplatform.viewer")
    waiting = asyncio.ensure_future(viewer.get(f"/jobs/{uid}/lines/new"))
    await until(lambda: house.notices._waiters)  # pyright: ignore[reportPrivateUsage]
    grant = {"role": "roles/aiplatform.viewer", "member": f"user:{ANA}", "project": "p1"}
    change = {**grant, "remove": True}
    assert (await house.call("POST", "/trainshed/v1/access:change", change)).status == 200
    house.write_log(int(uid), "workerpool0-0", (START, "first"))
    assert b"first" not in (await waiting).body


async def test_a_download_of_a_log_ends_with_the_token(
    house: ConsoleHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = await submit(house)
    await house.happen(f"projects/p1/locations/us-central1/customJobs/{uid}", JobAdmitted(()))
    house.write_log(int(uid), "workerpool0-0", (START, "first"), (START + 1, "second"))
    house.clock += 200 * SECOND
    viewer = await visitor(house, "roles/aiplatform.viewer")
    path, read = f"/jobs/{uid}/log.txt", logs.read
    assert "second" in (await viewer.get(path)).body.decode()

    async def last(*visit: Any, **query: str) -> Any:
        page = await read(*visit, **query)
        await house.call("DELETE", f"/trainshed/v1/tokens/{ANA}")
        return page

    monkeypatch.setattr(logs, "read", last)
    text = (await viewer.get(path)).body.decode()
    assert "first" in text and "second" not in text
