"""Buttons and forms of the console: their API calls, and errors."""

import pytest

from tests.console.browser import ADDRESS, Browser, ConsoleService, text_of
from tests.console.test_pages import CUSTOM_JOBS, submit
from tests.console.test_submit import OF_ML
from tests.contract.api.api_service import START
from trainshed.core.capacity import QuotaKey
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, DrillOrdered
from trainshed.core.lifecycle.records import DrillKind
from trainshed.core.names import JobUid, ReplicaId


async def test_cancel_button_cancels_the_job(service: ConsoleService, browser: Browser) -> None:
    uid = await submit(service)
    answer = await browser.post(f"/jobs/{uid}/cancel")
    assert (answer.status, answer.headers["location"]) == (303, f"/jobs/{uid}")
    assert service.woken[-1] == int(uid)


async def test_retry_button_submits_the_same_job_again(service: ConsoleService, browser: Browser) -> None:
    """This works for jobs of both APIs, except running jobs."""
    await service.call("POST", "/v1/projects/p1/jobs", OF_ML)
    result = (await service.result("GET", "/trainshed/v1/jobs?project=p1"))["jobs"]
    uids = [await submit(service, labels={"team": "vision"}), result[0]["uid"]]
    for uid in uids:
        assert (await browser.post(f"/jobs/{uid}/retry")).status == 400, "the job has not finished"
        first = await service.result("GET", f"/trainshed/v1/jobs/{uid}")
        await service.apply_events(first["name"], CancelRequested(CancelCause.USER, START))
        assert "Retry" in text_of(await browser.get(f"/jobs/{uid}"))
        answer = await browser.post(f"/jobs/{uid}/retry")
        assert answer.status == 303, text_of(answer)
        again = answer.headers["location"].rpartition("/")[2]
        assert again != uid
        second = await service.result("GET", f"/trainshed/v1/jobs/{again}")
        for part in ("displayName", "labels", "jobSpec", "trainingInput"):
            assert second["resource"].get(part) == first["resource"].get(part)


async def test_selected_jobs_are_cancelled_retried_and_deleted_together(
    service: ConsoleService, browser: Browser
) -> None:
    """A failure for one job shows its reason, and the other jobs are processed."""
    uids = [await submit(service, displayName=f"n{n}") for n in range(2)]
    form = {"job": " ".join(uids), "query": "state=QUEUED&x=\r\n"}
    answer = await browser.post("/marked/cancel", **form)
    assert (answer.status, answer.headers["location"]) == (303, "/?state=QUEUED&x=%0D%0A")
    first = await service.result("GET", f"/trainshed/v1/jobs/{uids[0]}")
    await service.apply_events(first["name"], CancelRequested(CancelCause.USER, START))
    for action in ("retry", "delete"):
        answer = await browser.post(f"/marked/{action}", **form)
        assert answer.status == 400
        assert "succeeded for 1 of 2 jobs" in text_of(answer) and uids[1] in text_of(answer)
    assert (await service.call("GET", f"/trainshed/v1/jobs/{uids[0]}")).status == 404
    assert "n0" in text_of(await browser.get("/"))
    assert (await browser.post("/marked/sell", **form)).status == 404


async def test_form_with_too_many_fields_is_rejected(service: ConsoleService, browser: Browser) -> None:
    headers = [("origin", ADDRESS), *browser.credentials, ("accept", "text/html")]
    form = "&".join(f"f{n}=1" for n in range(600)).encode()
    answer = await service.call("POST", "/submit/check", form, token=None, headers=headers)
    assert "The limit is 500." in text_of(answer)


@pytest.mark.parametrize(
    ("value", "at_line"),
    [
        ({"when": "now", "line": "left over", "step": "7"}, None),
        ({"when": "line", "line": "saved  checkpoint"}, "saved  checkpoint"),
    ],
)
async def test_drill_form_on_the_job_page_creates_a_drill(
    service: ConsoleService, browser: Browser, value: dict[str, str], at_line: str | None
) -> None:
    uid = await submit(service)
    path = f"/jobs/{uid}/drills"
    answer = await browser.post(path, kind="kill", replica="workerpool0-0", **value)
    assert (answer.status, answer.headers["location"]) == (303, path)
    live = await service.store.ledger.load(JobUid(int(uid)))
    assert live is not None
    (event,) = [intent.event for intent in live.intents]
    assert isinstance(event, DrillOrdered)
    drill = event.drill
    assert drill.kind is DrillKind.KILL
    assert (drill.replica, drill.at_line) == (ReplicaId(0, 0), at_line)


async def test_referer_header_is_not_an_open_redirect(service: ConsoleService, browser: Browser) -> None:
    path = f"/jobs/{await submit(service)}/drills"
    evil = ("http://evil.example/x", f"{ADDRESS}//evil.example", "javascript:alert(1)", "http://[")
    for elsewhere in evil:
        answer = await browser.post(path, ("referer", elsewhere), kind="nonsense")
        assert answer.status == 400
        assert "evil" not in answer.body.decode()
        assert "javascript:" not in answer.body.decode()


async def test_quota_form_sets_and_clears_a_quota(service: ConsoleService, browser: Browser) -> None:
    form = {"project": "p2", "region": "us-central1", "metric": "cpus_n1_e2"}
    answer = await browser.post("/quotas", limit="1234567", **form)
    assert (answer.status, answer.headers["location"]) == (303, "/queue?project=p2")
    assert b'value="1234567"' in (await browser.get("/queue?project=p2")).body
    key = QuotaKey("p2", "us-central1", "cpus_n1_e2")
    assert dict(await service.store.reader.quotas())[key] == 1234567
    await browser.post("/quotas", limit="unlimited", **form)
    assert (await browser.post("/quotas", limit="lots", **form)).status == 400
    assert (await browser.post("/quotas", limit="nan", **form)).status == 400
    assert (await browser.post("/quotas", limit="unlimited", **form)).status == 303
    assert key not in dict(await service.store.reader.quotas())
    page = await browser.get("/queue?project=p2")
    assert 'name="metric"' in page.body.decode()


async def test_node_form_can_drain_and_undrain_a_node(service: ConsoleService, browser: Browser) -> None:
    assert (await browser.post("/nodes/node-1/drain", reason="new disk")).status == 303
    (drain,) = await service.store.reader.drained_nodes()
    assert (drain.node, drain.reason) == ("node-1", "new disk")
    assert (await browser.post("/nodes/node-1/undrain")).status == 303
    assert await service.store.reader.drained_nodes() == ()
    assert service.capacity.readmitted == ["node-1"]
    assert (await browser.post("/nodes/nowhere/drain")).status == 404


async def test_action_without_permission_shows_an_error(service: ConsoleService, guest: Browser) -> None:
    uid = await submit(service)
    for action in ("cancel", "delete", "retry"):
        assert "succeeded for 0 of 1" in text_of(await guest.post(f"/marked/{action}", job=uid))
    assert (await service.call("GET", CUSTOM_JOBS)).status == 200
