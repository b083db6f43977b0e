"""`aiplatform` v1 ScheduleService over REST against a real store, and the runs that schedules start."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, START, ApiService
from tests.contract.api.violations import fields
from tests.people import add_user
from trainshed.api.additions import Addition, registry_with
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.eventloop.background import begin, cancel_all
from trainshed_pipelines.runs.lineage import Lineage
from trainshed_pipelines.runs.service import PipelineJobs
from trainshed_pipelines.runs.table import Runs
from trainshed_pipelines.schedules.service import ScheduleMethods
from trainshed_pipelines.schedules.table import Schedules

SCHEDULES, RUNS = f"{LOCATION}/schedules", f"{LOCATION}/pipelineJobs"
REQUEST = "schedule.create_pipeline_job_request"
MINUTE = 60 * 10**9
HOUR = 60 * MINUTE
ANA = "ana@corp.example"
# START is 2025-10-09T08:53:20Z.
NINE = START + 400 * 10**9
SPEC = {
    "schemaVersion": "2.1.0",
    "sdkVersion": "kfp-2.17.3",
    "pipelineInfo": {"name": "Nightly train"},
    "root": {"dag": {"tasks": {"a": {"taskInfo": {"name": "a"}, "componentRef": {"name": "c"}}}}},
    "components": {"c": {"executorLabel": "e"}},
    "deploymentSpec": {"executors": {"e": {"container": {"image": "i", "command": ["true"]}}}},
}


class SchedulingService(ApiService):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        store = self.store
        runs = Runs(store.writer, store.snapshots)
        schedules = Schedules(store.writer, store.snapshots)
        self.methods = ScheduleMethods(schedules, runs, lambda _: iter(()))
        jobs = PipelineJobs(runs, lambda _: iter(()), Lineage())
        served = Addition({**jobs.handlers(), **self.methods.handlers()})
        self.registry = registry_with({"pipelines": served})
        self.app = self.application()

    async def start_due(self, now: int) -> None:
        self.clock = now
        while (waits := (await self.methods.start_due(self.services))[1]) != []:
            assert waits == [0.0] * len(waits)

    async def runs(self) -> list[str]:
        """Return the IDs of all pipeline jobs, oldest first."""
        jobs = (await self.result("GET", RUNS)).get("pipelineJobs", [])
        return [job["name"].rpartition("/")[2] for job in reversed(jobs)]


SERVICE_CLASS = SchedulingService


def body(**changes: Any) -> dict[str, Any]:
    job = {"pipelineSpec": SPEC, "runtimeConfig": {"gcsOutputDirectory": "gs://bucket/root"}}
    request = {"parent": LOCATION.removeprefix("/v1/"), "pipelineJob": job}
    schedule = {
        "displayName": "nightly",
        "cron": "0 * * * *",
        "maxConcurrentRunCount": "1",
        "createPipelineJobRequest": request,
    }
    return schedule | changes


async def create(service: SchedulingService, token: str = "", **changes: Any) -> str:
    """Create a schedule, and return its path."""
    made = await service.result("POST", SCHEDULES, body(**changes), token=token)
    return f"/v1/{made['name']}"


async def test_schedule_is_created_listed_and_deleted(service: SchedulingService) -> None:
    path = await create(service, endTime="2025-10-10T00:00:00Z", maxRunCount="5")
    shown = await service.result("GET", path)
    assert shown == {
        **body(endTime="2025-10-10T00:00:00Z", maxRunCount="5"),
        "name": path.removeprefix("/v1/"),
        "state": "ACTIVE",
        "startTime": "2025-10-09T08:53:20Z",
        "createTime": "2025-10-09T08:53:20Z",
        "updateTime": "2025-10-09T08:53:20Z",
        "nextRunTime": "2025-10-09T09:00:00Z",
    }
    other = await create(service, displayName="other")
    names = ["/v1/" + item["name"] for item in (await service.result("GET", SCHEDULES))["schedules"]]
    assert names == [other, path]
    for text in (
        'state="ACTIVE" AND display_name:"night*"',
        'end_time>"2025-10-09T00:00:00Z" AND create_pipeline_job_request:*',
    ):
        answer = await service.result("GET", f"{SCHEDULES}?filter={quote(text)}&orderBy=end_time")
        assert [item["displayName"] for item in answer["schedules"]] == ["nightly"]
    assert fields(await service.call("GET", f"{SCHEDULES}?filter=cron%3Dx")) == {"filter"}
    done = await service.result("DELETE", path)
    assert (done["done"], done["response"]["@type"].rpartition(".")[2]) == (True, "Empty")
    assert (await service.call("GET", path)).status == 404


async def test_pipeline_jobs_are_listed_in_the_requested_order(service: SchedulingService) -> None:
    job = body()["createPipelineJobRequest"]["pipelineJob"]
    for name in ("first", "second", "third"):
        await service.result("POST", f"{RUNS}?pipelineJobId={name}", job)
        service.clock += MINUTE
    listed: list[str] = []
    token = ""
    for _ in range(3):
        query = f"orderBy={quote('create_time, end_time desc')}&pageSize=1&pageToken={token}"
        page = await service.result("GET", f"{RUNS}?{query}")
        listed += [job["name"].rpartition("/")[2] for job in page["pipelineJobs"]]
        token = page.get("nextPageToken", "")
    assert (listed, token) == (["first", "second", "third"], "")
    assert await service.runs() == listed
    assert fields(await service.call("GET", f"{RUNS}?orderBy=root")) == {"order_by"}


async def test_all_errors_of_a_schedule_are_reported(service: SchedulingService) -> None:
    broken = body(cron="0 0 * *", endTime="2020-01-01T00:00:00Z", maxConcurrentRunCount="0")
    broken["displayName"] = ""
    request = broken["createPipelineJobRequest"]
    request |= {"parent": "projects/p2/locations/us-central1", "pipelineJobId": "Nightly"}
    request["pipelineJob"] = {**request["pipelineJob"], "pipelineSpec": {**SPEC, "components": {}}}
    refused = fields(await service.call("POST", SCHEDULES, broken))
    path = f"{REQUEST}.pipeline_job.pipeline_spec."
    assert {field for field in refused if not field.startswith(path)} == {
        "schedule.cron",
        "schedule.display_name",
        "schedule.end_time",
        "schedule.max_concurrent_run_count",
        f"{REQUEST}.parent",
        f"{REQUEST}.pipeline_job_id",
    }
    assert any(field.startswith(path) for field in refused)
    for time, field in (("9999-12-31T23:59:59.999999999Z", ""), ("1969-01-01T00:00:00Z", ".start_time")):
        refused = await service.call("POST", SCHEDULES, body(startTime=time))
        assert fields(refused) == {f"schedule{field}"}
    notebook = body(createNotebookExecutionJobRequest={})
    del notebook["createPipelineJobRequest"]
    assert fields(await service.call("POST", SCHEDULES, notebook)) == {
        REQUEST,
        "schedule.create_notebook_execution_job_request",
    }


async def test_due_run_becomes_a_pipeline_job_of_the_schedule(service: SchedulingService) -> None:
    path = await create(service)
    same = await create(service)
    await service.start_due(NINE - MINUTE)
    assert await service.runs() == []
    await service.start_due(NINE)
    uid = same.rpartition("/")[2]
    runs = ["nightly-train-20251009090000", f"nightly-train-{uid}-20251009090000"]
    assert await service.runs() == runs
    run = await service.result("GET", f"{RUNS}/{runs[0]}")
    assert run["scheduleName"] == path.removeprefix("/v1/")
    assert run["pipelineSpec"] == SPEC
    mask = "name,pipelineSpec.pipelineInfo,jobDetail.pipelineContext"
    (first, _) = (await service.result("GET", f"{RUNS}?readMask={mask}"))["pipelineJobs"]
    assert first.keys() == {"name", "pipelineSpec"}
    assert first["pipelineSpec"] == {"pipelineInfo": SPEC["pipelineInfo"]}
    shown = await service.result("GET", path)
    assert shown["startedRunCount"] == "1"
    assert shown["lastScheduledRunResponse"] == {
        "scheduledRunTime": "2025-10-09T09:00:00Z",
        "runResponse": "OK",
    }
    await service.start_due(NINE + MINUTE)
    assert await service.runs() == runs
    entries = (await service.result("GET", "/trainshed/v1/audit?project=-"))["entries"]
    assert [entry["method"].rpartition(".")[2] for entry in entries[:2]] == 2 * ["CreatePipelineJob"]


async def test_pause_stops_runs_and_resume_can_start_missed_ones(service: SchedulingService) -> None:
    path = await create(service, createPipelineJobRequest=named_request("daily"))
    await service.result("POST", f"{path}:pause", {})
    await service.start_due(NINE + HOUR)
    shown = await service.result("GET", path)
    assert (shown["state"], "nextRunTime" in shown) == ("PAUSED", False)
    assert await service.runs() == []
    await service.result("POST", f"{path}:resume", {"catchUp": True})
    await service.start_due(service.clock)
    assert await service.runs() == ["daily-20251009090000", "daily-20251009100000"]
    answer = await service.call("POST", f"{path}:resume", {})
    assert answer.error["status"] == "FAILED_PRECONDITION"
    # The service does not run for three hours.
    await service.start_due(NINE + 4 * HOUR + 20 * MINUTE)
    response = (await service.result("GET", path))["lastScheduledRunResponse"]
    assert response["runResponse"].startswith("Skipped 3 runs since 2025-10-09T11:00:00Z")


def named_request(job_id: str) -> dict[str, Any]:
    return {**body()["createPipelineJobRequest"], "pipelineJobId": job_id}


async def test_update_changes_only_the_fields_in_the_mask(service: SchedulingService) -> None:
    path = await create(service, allowQueueing=True, maxRunCount="3")
    mask = "cron,allow_queueing,create_pipeline_job_request"
    changed = body(cron="30 9 * * *", displayName="no", createPipelineJobRequest=named_request("x"))
    shown = await service.result("PATCH", f"{path}?updateMask={mask}", changed)
    assert (shown["displayName"], shown["cron"], shown["maxRunCount"]) == ("nightly", "30 9 * * *", "3")
    assert (shown["nextRunTime"], "allowQueueing" in shown) == ("2025-10-09T09:30:00Z", False)
    await service.start_due(NINE + 30 * MINUTE)
    assert await service.runs() == ["x-20251009093000"]
    for mask, field in (
        ("maxRunCount,cron", "schedule.max_run_count"),
        ("state", "update_mask"),
        ("", "update_mask"),
    ):
        refused = await service.call("PATCH", f"{path}?updateMask={mask}", {"cron": "0 0 * * *"})
        assert fields(refused) == {field}


async def test_waiting_run_starts_after_the_end_of_an_earlier_run(service: SchedulingService) -> None:
    await create(service, allowQueueing=True, maxConcurrentActiveRunCount="1")
    loop = begin(service.methods.run(service.services, service.registry), "schedules")
    try:
        service.clock = NINE + 60 * MINUTE
        service.methods.wake()
        await wait_for_runs(service, 1)
        run = f"{RUNS.removeprefix('/v1/')}/nightly-train-20251009100000"
        service.clock += HOUR
        service.methods.wake()
        await asyncio.sleep(0.05)
        assert len(await service.runs()) == 1
        await service.update_job(run, state=JobState.SUCCEEDED, ended=service.clock)
        await wait_for_runs(service, 2)
    finally:
        await cancel_all([loop])


async def wait_for_runs(service: SchedulingService, count: int) -> None:
    for _ in range(2_000):
        if len(await service.runs()) == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(await service.runs())


async def test_runs_need_the_current_rights_of_the_author(service: SchedulingService) -> None:
    ana = add_user(service.tokens, ANA, "roles/aiplatform.user", "p1")
    path = await create(service, ana)
    await service.start_due(NINE)
    (run,) = await service.runs()
    job, _ = await service.store.reader.find(run)
    assert job.creator is not None
    assert job.creator.email == ANA
    service.tokens.replace(service.tokens.book.with_grants("p1", ()))
    await service.start_due(NINE + HOUR)
    assert await service.runs() == [run]
    shown = await service.result("GET", path)
    response = shown["lastScheduledRunResponse"]["runResponse"]
    assert shown["state"] == "PAUSED"
    assert response.startswith(f"Paused: {ANA} may not call")
    await service.result("POST", f"{path}:resume", {"catchUp": True})
    await service.start_due(service.clock)
    assert len(await service.runs()) == 2


async def test_group_rights_end_with_the_revocation_of_a_sign_in(service: SchedulingService) -> None:
    token = add_user(service.tokens, ANA, "roles/aiplatform.user", "p1", group="ml")
    path = await create(service, token)
    await service.start_due(NINE)
    assert len(await service.runs()) == 1
    service.tokens.replace(service.tokens.book.with_revocations([ANA], service.clock))
    await service.start_due(NINE + HOUR)
    assert (await service.result("GET", path))["state"] == "PAUSED"


async def test_disabled_account_starts_no_runs(service: SchedulingService) -> None:
    account = "runner@p1.iam.gserviceaccount.com"
    await service.result("POST", "/v1/projects/p1/serviceAccounts", {"accountId": "runner"})
    job = {**body()["createPipelineJobRequest"]["pipelineJob"], "serviceAccount": account}
    request = {**named_request("x"), "pipelineJob": job}
    path = await create(service, createPipelineJobRequest=request)
    own = await create(service, add_user(service.tokens, account, "roles/aiplatform.user", "p1"))
    book = service.tokens.book
    service.tokens.replace(book.with_account(replace(book.accounts[account], disabled=True)))
    await service.start_due(NINE)
    assert await service.runs() == []
    shown = await service.result("GET", path)
    response = shown["lastScheduledRunResponse"]["runResponse"]
    assert (shown["state"], "is disabled" in response) == ("ACTIVE", True)
    assert (await service.result("GET", own))["state"] == "PAUSED"


async def test_no_run_is_lost_or_repeated_if_its_start_fails(service: SchedulingService) -> None:
    path = await create(service)

    async def fail(*_: Any) -> None:
        raise RuntimeError("killed")

    services = service.services
    service.services = replace(services, create=fail)
    service.clock = NINE
    assert await service.methods.start_due(service.services) == (set[JobUid](), [10.0])
    assert "startedRunCount" not in await service.result("GET", path)
    service.services = services
    await service.start_due(NINE)
    await service.start_due(NINE)
    assert len(await service.runs()) == 1
