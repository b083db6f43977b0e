"""spec/lifecycle#dependencies: the label `trainshed-after` in both APIs."""

import json
from typing import Any

import pytest

from tests.contract.api.api_service import LOCATION, ApiService
from tests.contract.api.test_api_capacity import EXPLAIN
from tests.contract.api.violations import violations
from tests.people import add_user
from tests.unit.specs_requests import custom_job, ml_job
from tests.unit.test_specs_pipeline import inputs, pipeline
from tests.unit.test_specs_tuning import tuning_job
from trainshed.core.capacity import Preflight, Waiting, WaitReason
from trainshed.core.dependencies import Condition, Dependency
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobName, JobUid
from trainshed.core.tuning.records import TuningJob

LABEL = "labels.trainshed-after"
CUSTOM, ML = f"{LOCATION}/customJobs", "/v1/projects/p1/jobs"
JOBS = "/trainshed/v1/jobs"


def after(value: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    return (body or custom_job()) | {"labels": {"trainshed-after": value}}


async def create(service: ApiService, path: str, body: dict[str, Any]) -> str:
    """Create a resource, and return its name or its job ID."""
    made = await service.result("POST", path, body)
    return made.get("name") or f"projects/p1/jobs/{made['jobId']}"


async def cancel(service: ApiService, name: str) -> None:
    await service.apply_events(name, CancelRequested(CancelCause.USER, service.clock))


async def dependencies_of(service: ApiService, name: str) -> tuple[Dependency, ...]:
    work, _ = await service.store.reader.job(JobName.parse(name))
    return work.dependencies


async def test_jobs_of_both_apis_wait_for_jobs_of_either_api(service: ApiService) -> None:
    first = await create(service, CUSTOM, custom_job())
    second = await create(service, ML, ml_job())
    uid = first.rpartition("/")[2]
    third = await create(service, CUSTOM, after(f"{uid}__job_1_finished"))
    expected = (
        Dependency(JobUid(int(uid)), JobName.parse(first)),
        Dependency(JobUid(int(uid) + 1), JobName.parse(second), Condition.FINISHED),
    )
    assert await dependencies_of(service, third) == expected
    body = after(f"{uid}_finished__{uid}__{uid}_finished", ml_job(job_id="job_2"))
    assert await dependencies_of(service, await create(service, ML, body)) == expected[:1]


async def test_waiting_job_shows_the_jobs_that_it_waits_for(service: ApiService) -> None:
    first = await create(service, CUSTOM, custom_job())
    uid = first.rpartition("/")[2]
    paths = {
        CUSTOM: custom_job(),
        ML: ml_job(),
        f"{LOCATION}/hyperparameterTuningJobs": tuning_job(),
        f"{LOCATION}/trainingPipelines": pipeline(trainingTaskInputs=inputs()),
    }
    message = f"waits until job {uid} has succeeded"
    for path, body in paths.items():
        name = await create(service, path, after(uid, body))
        view = await service.result("GET", f"{JOBS}/{name.replace('/', '%2F')}")
        assert view["waits"] == [message]
        assert (view["waiting"]["reason"], view["waiting"]["blockers"]) == ("job", [first])
        if "Pipelines" not in path:
            entries = await service.result("GET", f"{JOBS}/{view['uid']}/timeline")
            (waiting,) = (entry for entry in entries["entries"] if entry["kind"] == "waiting")
            assert waiting["message"] == message and waiting["details"]["blockers"] == [first]
    listed = (await service.result("GET", f"{JOBS}?project=p1&glance=true"))["jobs"]
    assert {job["glance"]["waits"] for job in listed[:4]} == {message}


async def test_job_after_a_finished_job_does_not_wait(service: ApiService) -> None:
    first = await create(service, CUSTOM, custom_job())
    uid = first.rpartition("/")[2]
    await cancel(service, first)
    done = await create(service, CUSTOM, after(f"{uid}_finished"))
    assert await dependencies_of(service, done) == ()
    faults = violations(await service.call("POST", CUSTOM, after(uid)))
    assert list(faults) == [LABEL]
    assert (
        f"already ended without success. Run it again and use the new job, or use {uid}_fin"
        in (faults[LABEL])
    )


@pytest.mark.parametrize("value", ["", "17__", "_finished", "17:finished"])
async def test_malformed_label_is_rejected(service: ApiService, value: str) -> None:
    for path, body in ((CUSTOM, custom_job()), (ML, ml_job())):
        assert LABEL in violations(await service.call("POST", path, after(value, body)))


async def test_jobs_of_other_projects_and_unknown_jobs_get_the_same_error(service: ApiService) -> None:
    there = await create(service, LOCATION.replace("p1", "p2") + "/customJobs", custom_job())
    texts: set[str] = set()
    for value in (there.rpartition("/")[2], "12345"):
        for path, body in ((CUSTOM, custom_job()), (ML, ml_job())):
            faults = violations(await service.call("POST", path, after(value, body)))
            texts.add(json.dumps(faults).replace(value, "N"))
    (text,) = texts
    assert "does not exist in the project p1, or you may not read it" in text


async def test_caller_needs_the_right_to_read_the_job(service: ApiService) -> None:
    """A user with a role in one API only cannot find out whether a job of the other API exists."""
    first = await create(service, CUSTOM, custom_job())
    await create(service, ML, ml_job())
    ana = add_user(service.tokens, "ana@x.example", "roles/ml.developer", "p1")
    uid = first.rpartition("/")[2]
    for value in (uid, "12345"):
        body = after(value, ml_job(job_id="job_2"))
        faults = violations(await service.call("POST", ML, body, token=ana))
        assert "or you may not read it" in faults[LABEL]
    body = after("job_1", ml_job(job_id="job_3"))
    assert (await service.call("POST", ML, body, token=ana)).status == 200


async def test_label_of_a_pipeline_holds_its_job(service: ApiService) -> None:
    first = await create(service, CUSTOM, custom_job())
    uid = first.rpartition("/")[2]
    path = f"{LOCATION}/trainingPipelines"
    made = await create(service, path, after(uid, pipeline(trainingTaskInputs=inputs())))
    work, _ = await service.store.reader.job(JobName.parse(made))
    assert work.dependencies == ()
    (child,) = await service.store.reader.children(work.uid)
    assert isinstance(child, Job | TuningJob) and child.is_held


async def test_preflight_shows_the_jobs_unless_the_job_never_fits(service: ApiService) -> None:
    first = await create(service, CUSTOM, custom_job())
    service.capacity.answer = Preflight((("workerpool0-0", "node-1"),), position=1)
    body = {"api": "vertex", "project": "p1", "location": "us-central1"}
    body |= {"job": after(first.rpartition("/")[2])}
    view = await service.result("POST", EXPLAIN, body)
    assert (view["admitted"], view["waiting"]["reason"]) == (False, "job")
    service.capacity.answer = Preflight(waiting=Waiting(WaitReason.STOCK_OUT, "too large"))
    assert (await service.result("POST", EXPLAIN, body))["waiting"]["reason"] == "stock_out"
    faults = violations(await service.call("POST", EXPLAIN, {**body, "job": after("12345")}))
    assert list(faults) == [LABEL]


async def test_label_cannot_be_changed_after_the_creation(service: ApiService) -> None:
    first = await create(service, CUSTOM, custom_job())
    uid = first.rpartition("/")[2]
    name = await create(service, ML, after(uid, ml_job()))
    path = f"{ML}/job_1?updateMask=labels"
    for labels in ({}, {"trainshed-after": f"{uid}_finished"}):
        faults = violations(await service.call("PATCH", path, {"labels": labels}))
        assert "only when the job is created" in faults[LABEL]
    kept = {"trainshed-after": uid, "team": "x"}
    assert (await service.call("PATCH", path, {"labels": kept})).status == 200
    await cancel(service, name)
    assert (await service.call("PATCH", path, {"labels": {}})).status == 200
