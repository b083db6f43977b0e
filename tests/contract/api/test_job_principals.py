"""Rights of a program that calls the APIs with the token of its metadata endpoint (spec/program#storage)."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, Answer, ApiService
from tests.contract.api.fake_advisor import service_over
from tests.contract.api.test_datasets import body as dataset_body
from tests.unit.jobs import job as stored_job
from tests.unit.specs_requests import custom_job, ml_job
from tests.unit.test_specs_pipeline import inputs, pipeline
from tests.unit.test_specs_tuning import tuning_job
from trainshed.access.job_tokens import JobClaims
from trainshed.core.lifecycle.events import CancelRequested
from trainshed.core.lifecycle.records import ActingJob, Actor
from trainshed.core.names import Api, JobName, JobUid, project_number
from trainshed.store.logs.lines import Severity, Stream, read_line
from trainshed.store.port import NewWork

EMAIL = "trainer@p1.iam.gserviceaccount.com"
JOBS_PATH = "/trainshed/v1/jobs/"


@pytest.fixture(params=["REST", "gRPC"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[ApiService]:
    """spec/submit: both transports use the same handlers and the same rules."""
    async with service_over(request.param, tmp_path) as opened:
        await _own_job(opened, 1)
        yield opened


async def _own_job(service: ApiService, uid: int) -> None:
    """Store the job of the calling program. It is an `ml` job, so lists of custom jobs do not contain it."""
    own = replace(stored_job(), uid=JobUid(uid), name=JobName(Api.ML, "p1", "", f"own_{uid}"))
    await service.store.intake.create(NewWork(own))


async def send_as_program(
    service: ApiService, verb: str, path: str, body: object = None, *, job: int = 1
) -> Answer:
    """Send a request as the program of a job of project p1."""
    token, _ = service.jobs.mint(JobClaims(job, 1, "workerpool0-0", "p1", EMAIL))
    return await service.call(verb, path, body, token=token)


def assert_denied(answer: Answer, *parts: str) -> None:
    assert (answer.status, answer.error["status"]) == (403, "PERMISSION_DENIED"), answer.body
    for part in (EMAIL, *parts):
        assert part in answer.error["message"]


async def job(service: ApiService, location: str) -> str:
    return (await service.result("POST", f"{location}/customJobs", custom_job()))["name"]


async def test_program_finds_its_project_id_by_number(service: ApiService) -> None:
    """The Vertex SDK requests the project ID if a program sets no project: it finds the number in
    CLOUD_ML_PROJECT_ID."""
    number = project_number("p1")
    for project in ("p1", number):
        view = (await send_as_program(service, "GET", f"/v3/projects/{project}")).json
        assert (view["projectId"], view["state"]) == ("p1", "ACTIVE")
        assert view["name"] == f"projects/{number}"
    assert_denied(await send_as_program(service, "GET", "/v3/projects/p2"), "specifies p2")


async def test_program_can_cancel_only_its_job_and_child_jobs(service: ApiService) -> None:
    """The other jobs were created by a user, by another job of the project, and by a job with its
    own children."""
    await _own_job(service, 2)
    by_a_person = await job(service, LOCATION)
    child = (await send_as_program(service, "POST", f"{LOCATION}/customJobs", custom_job())).json["name"]
    assert_denied(
        await send_as_program(service, "POST", f"/v1/{by_a_person}:cancel", {}),
        by_a_person,
        "owner@trainshed.local",
    )
    assert_denied(
        await send_as_program(service, "POST", f"/v1/{child}:cancel", {}, job=2), "projects/p1/jobs/own_1"
    )
    assert_denied(
        await send_as_program(service, "POST", "/v1/projects/p1/jobs/own_1:cancel", {}, job=2), "own_2"
    )
    number = int(child.rpartition("/")[2])
    grandchild = (
        await send_as_program(service, "POST", f"{LOCATION}/customJobs", custom_job(), job=number)
    ).json["name"]
    assert_denied(
        await send_as_program(service, "POST", "/v1/projects/p1/jobs/own_1:cancel", {}, job=number), "own_1"
    )
    for name in (grandchild, child, "projects/p1/jobs/own_1"):
        assert (await send_as_program(service, "POST", f"/v1/{name}:cancel", {})).status == 200
    tuned = (
        await send_as_program(service, "POST", f"{LOCATION}/hyperparameterTuningJobs", tuning_job(), job=2)
    ).json["name"]
    made = pipeline(trainingTaskInputs=inputs())
    piped = (await send_as_program(service, "POST", f"{LOCATION}/trainingPipelines", made, job=2)).json[
        "name"
    ]
    old = (await send_as_program(service, "POST", "/v1/projects/p1/jobs", ml_job(), job=2)).json["jobId"]
    for name in (tuned, piped, f"projects/p1/jobs/{old}"):
        assert_denied(await send_as_program(service, "POST", f"/v1/{name}:cancel", {}), name, "own_2")
        assert (await send_as_program(service, "POST", f"/v1/{name}:cancel", {}, job=2)).status == 200


async def test_creator_and_canceller_of_a_job_are_stored(service: ApiService) -> None:
    child = (await send_as_program(service, "POST", f"{LOCATION}/customJobs", custom_job())).json["name"]
    number = int(child.rpartition("/")[2])
    made = await send_as_program(service, "POST", f"{LOCATION}/customJobs", custom_job(), job=number)
    grandchild = made.json["name"]
    uid = int(grandchild.rpartition("/")[2])
    assert (await send_as_program(service, "POST", f"/v1/{grandchild}:cancel", {})).status == 200
    live = await service.store.ledger.load(JobUid(uid))
    assert live is not None and live.job.creator is not None
    # Job 1 is the origin: jobs created by its children count as its jobs.
    assert live.job.creator == Actor(EMAIL, ActingJob(JobUid(number), JobName.parse(child), JobUid(1)))
    (intent,) = live.intents
    assert isinstance(intent.event, CancelRequested)
    own = JobName(Api.ML, "p1", "", "own_1")
    assert intent.event.by == Actor(EMAIL, ActingJob(JobUid(1), own, JobUid(1)))
    assert (await service.result("GET", f"{JOBS_PATH}{uid}"))["creator"] == f"the job {child}"
    entry = (await service.result("GET", f"{JOBS_PATH}{uid}/timeline"))["entries"][0]
    assert f"was created by the job {child}" in entry["message"]
    assert entry["details"]["principal"] == EMAIL


async def test_token_of_a_deleted_job_is_rejected(service: ApiService) -> None:
    name = await job(service, LOCATION)
    for path, body in ((f"{LOCATION}/customJobs", custom_job()), (f"/v1/{name}:cancel", {})):
        answer = await send_as_program(service, "POST", path, body, job=77)
        assert (answer.status, answer.error["status"]) == (401, "UNAUTHENTICATED")


async def test_label_trainshed_outlives_accepts_only_on_or_off(service: ApiService) -> None:
    wrong = custom_job() | {"labels": {"trainshed-outlives": "true"}}
    answer = await send_as_program(service, "POST", f"{LOCATION}/customJobs", wrong)
    assert answer.status == 400
    assert "labels.trainshed-outlives" in answer.error["message"]
    assert "neither on nor off" in answer.error["message"]


async def test_program_cannot_create_a_job_with_more_rights_than_its_own(service: ApiService) -> None:
    """The program can use neither another service account nor a secret. The error does not reveal
    whether such a secret exists."""
    own = custom_job()
    own["jobSpec"]["serviceAccount"] = EMAIL
    assert (await send_as_program(service, "POST", f"{LOCATION}/customJobs", own)).status == 200
    more = custom_job()
    more["jobSpec"]["serviceAccount"] = "boss@p1.iam.gserviceaccount.com"
    env = [{"name": "KEY", "value": "$(secret:wandb)"}, {"name": "X", "value": "$$(secret:plain)"}]
    more["jobSpec"]["workerPoolSpecs"][0]["containerSpec"] = {"imageUri": "x", "env": env}
    more["jobSpec"]["workerPoolSpecs"][0].pop("pythonPackageSpec", None)
    answer = await send_as_program(service, "POST", f"{LOCATION}/customJobs", more)
    assert_denied(answer, "boss@p1.iam", "the secret 'wandb'")
    legacy = ml_job()
    legacy["trainingInput"]["serviceAccount"] = "boss@p1.iam.gserviceaccount.com"
    assert_denied(await send_as_program(service, "POST", "/v1/projects/p1/jobs", legacy), "boss@p1.iam")


async def test_program_can_write_only_to_the_log_of_its_job(service: ApiService) -> None:
    """google-cloud-logging inside a job: the token selects the job's log, and the request cannot
    select another one."""
    entries: list[dict[str, Any]] = [
        {"textPayload": "plain", "severity": "WARNING", "labels": {"a": "b"}},
        {"jsonPayload": {"message": "with fields", "loss": 0.5}, "severity": 500},
        {"logName": "projects/p1/logs/other", "jsonPayload": {"loss": 1}},
        {"jsonPayload": {"logging.googleapis.com/diagnostic": {"instrumentation_source": []}}},
    ]
    body: dict[str, Any] = {
        "logName": "projects/p1/logs/python",
        "resource": {"type": "global", "labels": {"project_id": "p1"}},
        "entries": entries,
    }
    answer = await send_as_program(service, "POST", "/v2/entries:write", body)
    assert (answer.status, answer.json) == (200, {}), answer.body
    ((uid, attempt, replica, lines),) = service.written
    assert (uid, attempt, str(replica)) == (1, 1, "workerpool0-0")
    labels = "logging.googleapis.com/labels"
    assert [json.loads(line) for line in lines] == [
        {"severity": "WARNING", "message": "plain", labels: {"a": "b"}},
        {"severity": "ERROR", "message": "with fields", "loss": 0.5},
        {"severity": "DEFAULT", "loss": 1},
    ]
    read = read_line(Stream.STDOUT, lines[1])
    assert (read.severity, read.text, read.payload) == (
        Severity.ERROR,
        "with fields",
        {"message": "with fields", "loss": 0.5},
    )
    foreign = {**body, "entries": [{"logName": "projects/p2/logs/x", "textPayload": "x"}]}
    assert_denied(await send_as_program(service, "POST", "/v2/entries:write", foreign), "specifies p2")
    assert_denied(
        await send_as_program(service, "POST", "/v2/entries:write", {"entries": entries[:1]}), "no project"
    )
    people = await service.call("POST", "/v2/entries:write", body)
    assert (people.status, people.error["status"]) == (400, "FAILED_PRECONDITION")
    assert len(service.written) == 1


async def test_audit_log_contains_deletions_by_a_program_with_its_job(service: ApiService) -> None:
    """docs/team.md#read-the-audit-log."""
    made = await send_as_program(service, "POST", f"{LOCATION}/datasets", dataset_body())
    assert made.status == 200, made.body
    (dataset,) = (await service.result("GET", f"{LOCATION}/datasets"))["datasets"]
    name = dataset["name"]
    assert (await send_as_program(service, "DELETE", f"/v1/{name}")).status == 200
    entries = (await service.result("GET", "/trainshed/v1/audit?project=p1"))["entries"]
    shown = [(e["who"], e["method"].rpartition(".")[2], e["detail"]["job"]) for e in entries]
    assert shown == [(EMAIL, "DeleteDataset", "1"), (EMAIL, "CreateDataset", "1")]
    assert entries[0]["resource"] == name


async def test_audit_log_contains_denied_calls_of_a_program(service: ApiService) -> None:
    name = await job(service, LOCATION)
    assert_denied(await send_as_program(service, "DELETE", f"/v1/{name}"))
    entry, *_ = (await service.result("GET", "/trainshed/v1/audit?project=p1"))["entries"]
    assert (entry["who"], entry["answer"], entry["detail"]["job"]) == (EMAIL, "PERMISSION_DENIED", "1")


async def test_audit_log_contains_job_names(service: ApiService) -> None:
    name = await job(service, LOCATION)
    await service.call("POST", f"/v1/{name}:cancel", {})
    entries = (await service.result("GET", "/trainshed/v1/audit?project=p1"))["entries"]
    assert {e["detail"].get("name") for e in entries} == {custom_job()["displayName"]}
    assert {e["method"].rpartition(".")[2] for e in entries} == {"CreateCustomJob", "CancelCustomJob"}
