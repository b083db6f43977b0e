"""The team page: roles, tokens, usage and audit log, restricted to the visitor's permissions."""

import asyncio
import re
from typing import Any

import pytest

from tests.console.browser import Browser, ConsoleService, text_of
from tests.console.test_overview import start_placed_job
from tests.console.test_pages import submit
from tests.contract.api.api_service import SECOND, START
from tests.people import add_user
from tests.waiting import until
from trainshed.core.lifecycle.events import JobAdmitted
from trainshed.core.names import JobUid
from trainshed_console.pages import logs

ANA = "ana@corp.example"


async def sign_in_with_role(service: ConsoleService, role: str, project: str = "p1") -> Browser:
    person = Browser(service)
    await person.sign_in(token=add_user(service.tokens, ANA, role, project))
    return person


async def test_role_form_grants_and_revokes_a_role(service: ConsoleService, browser: Browser) -> None:
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


async def test_new_token_is_shown_once_and_its_deletion_ends_sessions(
    service: ConsoleService, browser: Browser
) -> None:
    page = (await browser.post("/team/tokens", email=ANA, days="7")).body.decode()
    [token] = re.findall(r"<code>([A-Za-z0-9_-]{43})</code>", page)
    assert token not in (await browser.get("/team")).body.decode()
    ana = Browser(service)
    await ana.sign_in(token=token)
    assert "You have no role yet" in text_of(await ana.get("/team"))
    [stored] = service.services.access.book.tokens.values()
    assert (await browser.post(f"/team/tokens/{stored.id}/delete")).status == 303
    assert (await ana.get("/team")).status != 200


@pytest.mark.parametrize(("by", "name"), [("user", "owner@trainshed.local"), ("project", "p1")])
async def test_team_page_shows_usage_with_bars(
    service: ConsoleService, browser: Browser, by: str, name: str
) -> None:
    await start_placed_job(service)
    service.clock += 3600 * SECOND
    page = await browser.get(f"/team?project=p1&by={by}")
    assert f"{name} 2.0 4.0 16.1" in text_of(page)
    assert 'class="fill" width="100.0"' in page.body.decode()


async def test_viewer_sees_no_action_buttons_and_no_other_projects(service: ConsoleService) -> None:
    uid = await submit(service)
    viewer = await sign_in_with_role(service, "roles/aiplatform.viewer")
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
    assert "Grant a role" in text_of(await (await sign_in_with_role(service, "roles/owner")).get("/team"))


@pytest.mark.parametrize("path", ["/jobs", "/jobs/{job}"])
async def test_open_page_ends_when_the_role_is_revoked(service: ConsoleService, path: str) -> None:
    """The page ends in the same way as after a sign-out."""
    uid = await submit(service)
    viewer = await sign_in_with_role(service, "roles/aiplatform.viewer")
    path = f"/events{path.replace('{job}', uid)}"
    async with service.events(path, viewer.credentials) as events:
        await events.next("parts")
        grant = {"role": "roles/aiplatform.viewer", "member": f"user:{ANA}", "project": "p1"}
        change = {**grant, "remove": True}
        assert (await service.call("POST", "/trainshed/v1/access:change", change)).status == 200
        service.notices.publish(JobUid(int(uid)))
        assert "roles have changed" in (await events.next("gone"))["message"]


async def test_waiting_log_request_gets_no_lines_after_role_revocation(service: ConsoleService) -> None:
    uid = await submit(service)
    await service.apply_events(f"projects/p1/locations/us-central1/customJobs/{uid}", JobAdmitted(()))
    viewer = await sign_in_with_role(service, "roles/aiplatform.viewer")
    waiting = asyncio.ensure_future(viewer.get(f"/jobs/{uid}/lines/new"))
    await until(lambda: service.notices._waiters)  # pyright: ignore[reportPrivateUsage]
    grant = {"role": "roles/aiplatform.viewer", "member": f"user:{ANA}", "project": "p1"}
    change = {**grant, "remove": True}
    assert (await service.call("POST", "/trainshed/v1/access:change", change)).status == 200
    service.write_log(int(uid), "workerpool0-0", (START, "first"))
    assert b"first" not in (await waiting).body


async def test_log_download_ends_when_the_token_is_deleted(
    service: ConsoleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = await submit(service)
    await service.apply_events(f"projects/p1/locations/us-central1/customJobs/{uid}", JobAdmitted(()))
    service.write_log(int(uid), "workerpool0-0", (START, "first"), (START + 1, "second"))
    service.clock += 200 * SECOND
    viewer = await sign_in_with_role(service, "roles/aiplatform.viewer")
    path, read = f"/jobs/{uid}/log.txt", logs.read
    assert "second" in (await viewer.get(path)).body.decode()

    async def last(*visit: Any, **query: str) -> Any:
        page = await read(*visit, **query)
        await service.call("DELETE", f"/trainshed/v1/tokens/{ANA}")
        return page

    monkeypatch.setattr(logs, "read", last)
    text = (await viewer.get(path)).body.decode()
    assert "first" in text and "second" not in text
