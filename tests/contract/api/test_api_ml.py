"""`ml` v1 over REST against a real store (facts/resources#ml, facts/limits#error-texts)."""

from typing import Any
from urllib.parse import quote

import pytest

from tests.contract.api.api_service import SECOND, START, ApiService
from tests.contract.api.violations import fields, violations
from tests.unit.jobs import exit_record
from tests.unit.specs_requests import ml_job
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.lifecycle.replica_events import ReplicaExited
from trainshed.core.names import Api, JobName, ReplicaId

JOBS = "/v1/projects/p1/jobs"
PRIMARY = ReplicaId(0, 0)


async def create_job(service: ApiService, job_id: str = "job_1", **more: Any) -> dict[str, Any]:
    return await service.result("POST", JOBS, ml_job(job_id=job_id, **more))


async def test_created_ml_job_is_returned_by_get(service: ApiService) -> None:
    view = await create_job(service, labels={"a": "b"}, scaleTier="STANDARD_1")
    assert (view["jobId"], view["state"], view["labels"]) == ("job_1", "QUEUED", {"a": "b"})
    assert view["createTime"] == "2025-10-09T08:53:20Z"
    assert view["etag"]
    assert view["trainingOutput"] == {}, "programs read it in every state"
    training_input = ml_job(scaleTier="STANDARD_1")["trainingInput"]
    assert view["trainingInput"] == training_input
    assert await service.result("GET", f"{JOBS}/job_1") == view
    assert (await service.result("GET", JOBS))["jobs"] == [view]
    assert service.woken == [1000]


async def test_job_id_cannot_be_reused_in_a_project(service: ApiService) -> None:
    """spec/submit#refusals: 409."""
    await create_job(service)
    answer = await service.call("POST", JOBS, ml_job())
    assert (answer.status, answer.error["status"]) == (409, "ALREADY_EXISTS")
    await service.result("POST", "/v1/projects/p2/jobs", ml_job())


async def test_all_wrong_fields_of_an_ml_job_are_reported_in_googles_format(service: ApiService) -> None:
    """spec/submit#refusals, facts/limits#error-texts."""
    body = ml_job(job_id="1st", region="mars", jobDir="gs://nowhere/x", packageUris=["gs://missing/p.tar.gz"])
    answer = await service.call("POST", JOBS, body)
    names = ["job_id", "region", "package_uris[0]", "job_dir"]
    assert list(violations(answer)) == names
    lines = answer.error["message"].splitlines()
    assert [line.split(" Error: ")[0] for line in lines] == [f"Field: {name}" for name in names]
    assert await service.result("GET", JOBS) == {}


async def test_failed_ml_job_shows_its_error_message(service: ApiService) -> None:
    await create_job(service)
    service.clock = START + 900 * SECOND
    over = ReplicaExited(1, PRIMARY, 1, exit_record(1, ended=service.clock))
    await service.run("projects/p1/jobs/job_1", over, at=START)
    view = await service.result("GET", f"{JOBS}/job_1")
    assert view["state"] == "FAILED"
    assert view["errorMessage"].startswith("The replica master 0 exited with a non-zero status of 1.")
    assert (view["startTime"], view["endTime"]) == ("2025-10-09T08:53:20Z", "2025-10-09T09:08:20Z")
    assert view["trainingOutput"] == {"consumedMLUnits": 0.1}, "15 minutes of n1-standard-4"
    assert (await service.result("GET", JOBS))["jobs"] == [view]


async def test_cancelled_ml_job_shows_its_reason(service: ApiService) -> None:
    await create_job(service)
    assert await service.result("POST", f"{JOBS}/job_1:cancel", {}) == {}
    await service.apply_events("projects/p1/jobs/job_1", CancelRequested(CancelCause.USER, START))
    view = await service.result("GET", f"{JOBS}/job_1")
    assert view["state"] == "CANCELLED"
    assert view["errorMessage"] == "The job was cancelled by the user."
    assert view["trainingOutput"] == {}, "it never ran"
    again = await service.call("POST", f"{JOBS}/job_1:cancel", {})
    assert (again.status, again.error["status"]) == (400, "FAILED_PRECONDITION")


async def test_stopping_service_rejects_new_jobs(service: ApiService) -> None:
    await create_job(service)
    service.services.closing.set()
    answer = await service.call("POST", JOBS, ml_job(job_id="job_2"))
    assert (answer.status, answer.error["status"]) == (503, "UNAVAILABLE")
    assert "is stopping" in answer.error["message"]
    wrong = await service.call("POST", JOBS, ml_job(job_id="2nd"))
    assert wrong.status == 400
    assert (await service.call("GET", f"{JOBS}/job_1")).status == 200
    assert (await service.call("GET", f"{JOBS}/job_2")).status == 404
    assert await service.result("POST", f"{JOBS}/job_1:cancel", {}) == {}


async def test_ml_jobs_are_listed_newest_first_with_googles_page_sizes(service: ApiService) -> None:
    """facts/resources#ml: default 20, at most 100."""
    for n in range(23):
        await create_job(service, f"census_{n}")
    first = await service.result("GET", JOBS)
    assert [job["jobId"] for job in first["jobs"]] == [f"census_{n}" for n in range(22, 2, -1)]
    rest = await service.result("GET", f"{JOBS}?pageToken={first['nextPageToken']}")
    assert [job["jobId"] for job in rest["jobs"]] == ["census_2", "census_1", "census_0"]
    assert "nextPageToken" not in rest
    filtered = await service.call("GET", f"{JOBS}?filter=" + quote("jobId:census_1* AND state:QUEUED"))
    assert len(filtered.json["jobs"]) == 11
    assert await service.result("GET", f"{JOBS}?filter=state%3AFAILED") == {}


async def test_label_update_with_a_stale_etag_is_rejected(service: ApiService) -> None:
    """facts/resources#ml: patch with updateMask=labels; optimistic concurrency with the etag."""
    etag = (await create_job(service, labels={"a": "1"}))["etag"]
    changed = await service.result(
        "PATCH", f"{JOBS}/job_1?updateMask=labels,etag", {"labels": {"b": "2"}, "etag": etag}
    )
    assert changed["labels"] == {"b": "2"}
    assert changed["etag"] != etag
    assert service.woken == 2 * service.woken[:1], "the controller goes by labels, too"
    stale = await service.call("PATCH", f"{JOBS}/job_1?updateMask=labels", {"labels": {}, "etag": etag})
    assert (stale.status, stale.error["status"]) == (409, "ABORTED")
    blind = await service.call("PATCH", f"{JOBS}/job_1?updateMask=labels", {"labels": {}})
    assert "labels" not in blind.json
    name, gone = JobName(Api.ML, "p1", "", "job_1"), {"trainshed-notify": "gone"}
    await service.store.intake.replace_labels(name, tuple(gone.items()), "", service.clock)
    kept = {"labels": {**gone, "b": "2"}}
    assert (await service.call("PATCH", f"{JOBS}/job_1?updateMask=labels", kept)).status == 200


@pytest.mark.parametrize(
    ("query", "body", "field"),
    [
        ("", {"labels": {"a": "b"}}, "update_mask"),
        ("?updateMask=etag", {"labels": {"a": "b"}}, "update_mask"),
        ("?updateMask=labels,trainingInput.region", {"labels": {}}, "update_mask"),
        ("?updateMask=labels", {"labels": {"A": "b"}}, "labels.A"),
        ("?updateMask=labels", {"labels": {"trainshed-notify": "x"}}, "labels.trainshed-notify"),
    ],
)
async def test_patch_with_invalid_labels_or_fields_other_than_labels_is_rejected(
    service: ApiService, query: str, body: dict[str, Any], field: str
) -> None:
    await create_job(service)
    assert fields(await service.call("PATCH", f"{JOBS}/job_1{query}", body)) == {field}


async def test_project_config_contains_a_service_account_and_number(service: ApiService) -> None:
    view = await service.result("GET", "/v1/projects/p1:getConfig")
    assert view["serviceAccount"] == "trainshed@localhost"
    assert view["serviceAccountProject"].isdigit()


async def test_ml_operations_are_empty_and_job_policies_are_unimplemented(service: ApiService) -> None:
    assert await service.result("GET", "/v1/projects/p1/operations") == {}
    assert (await service.call("GET", "/v1/projects/p1/operations/x")).status == 404
    await create_job(service)
    policy = await service.call("POST", f"{JOBS}/job_1:setIamPolicy", {"policy": {}})
    assert (policy.status, policy.error["status"]) == (400, "UNIMPLEMENTED")
    assert "SetIamPolicy" in policy.error["message"]
