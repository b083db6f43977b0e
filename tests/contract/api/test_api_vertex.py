"""`aiplatform` v1 over REST against a real store: customJobs, operations, locations
(facts/resources#custom-jobs, facts/limits#error-texts)."""

import json
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, SECOND, SETTINGS, START, ApiService
from tests.contract.api.violations import fields, violations
from tests.unit.jobs import exit_record
from tests.unit.specs_requests import custom_job, package, pool
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.lifecycle.records import Actor
from trainshed.core.lifecycle.replica_events import ReplicaExited
from trainshed.core.names import ReplicaId, project_number

JOBS = f"{LOCATION}/customJobs"
PRIMARY = ReplicaId(0, 0)


async def create_job(service: ApiService, display_name: str = "job", **more: Any) -> str:
    return (await service.result("POST", JOBS, custom_job() | {"displayName": display_name} | more))["name"]


async def finish(service: ApiService, name: str, code: int = 0) -> None:
    end = ReplicaExited(1, PRIMARY, 1, exit_record(code, ended=START + 5 * SECOND))
    await service.run(name, end, at=START + 2 * SECOND)


async def test_create_and_get_return_the_same_custom_job(service: ApiService) -> None:
    skipped: dict[str, Any] = {}
    body = custom_job(pool(), skipped, package(args=["--x", "1"]), scheduling={"timeout": "7200s"}) | {
        "labels": {"team": "a"}
    }
    answer = await service.call("POST", JOBS, body)
    view = answer.json
    assert answer.status == 200
    assert view["name"] == "projects/p1/locations/us-central1/customJobs/1000"
    assert view["state"] == "JOB_STATE_QUEUED"
    assert view["createTime"] == view["updateTime"] == "2025-10-09T08:53:20Z"
    assert {key: view[key] for key in body} == body
    assert "startTime" not in view
    assert await service.result("GET", f"/v1/{view['name']}") == view
    assert service.woken == [1000]


async def test_unreadable_and_invalid_fields_are_reported_together(service: ApiService) -> None:
    """spec/submit#refusals: unknown fields, unknown enum values and wrong types are reported
    together with broken rules."""
    bad: dict[str, Any] = custom_job(pool(), pool(machineSpec={"machineType": "n1-standrd-4"}))
    bad["displayName"] = ""
    bad["labels"] = {"Team": "a"}
    bad["surprise"] = 1
    bad["jobSpec"]["scheduling"] = {"strategy": "CHEAPEST"}
    bad["jobSpec"]["workerPoolSpecs"][0]["replicaCount"] = "many"
    answer = await service.call("POST", JOBS, bad)
    faults = violations(answer)
    assert not faults["display_name"].startswith("Field: "), "the field is named beside it"
    assert "\nField: display_name; " in answer.error["message"]
    assert sorted(faults) == [
        "custom_job.job_spec.scheduling.strategy",
        "custom_job.job_spec.worker_pool_specs[0].replica_count",
        "custom_job.surprise",
        "display_name",
        "job_spec.worker_pool_specs[1].machine_spec.machine_type",
        "labels.Team",
    ]
    assert await service.result("GET", JOBS) == {}


async def test_unknown_location_project_or_job_is_rejected(service: ApiService) -> None:
    unknown = await service.call("POST", "/v1/projects/p1/locations/mars-1/customJobs", custom_job())
    assert (unknown.status, unknown.error["status"]) == (404, "NOT_FOUND")
    assert "'mars-1'" in unknown.error["message"]
    crooked = await service.call("GET", "/v1/projects/-p-/locations/us-central1/customJobs")
    assert fields(crooked) == {"parent"}
    missing = await service.call("GET", f"{JOBS}/1")
    assert (missing.status, missing.error["status"]) == (404, "NOT_FOUND")


async def test_finished_job_has_numeric_enums_and_timestamps(service: ApiService) -> None:
    """spec/clients#numbers; facts/resources#vertex."""
    name = await create_job(service)
    service.clock = START + 6 * SECOND + 123_456_789
    await finish(service, name)
    view = await service.result("GET", f"/v1/{name}?%24alt=json%3Benum-encoding%3Dint")
    assert (view["state"], view["startTime"]) == (4, "2025-10-09T08:53:22Z")
    assert view["endTime"] == "2025-10-09T08:53:25Z", "the end of its program, not the time of the report"
    assert view["updateTime"] == "2025-10-09T08:53:26.123456Z"
    assert "error" not in view


async def test_job_error_links_to_the_services_current_address(service: ApiService) -> None:
    """spec/failures#messages: every text about a finished job contains the current address, even if
    the address has changed since the job's end."""
    name = await create_job(service)
    await finish(service, name, code=7)
    uid = name.rpartition("/")[2]
    shown = {
        f"/v1/{name}",
        f"/v1/{name.rpartition('/')[0]}",
        "/trainshed/v1/jobs?project=-",
        f"/trainshed/v1/jobs/{uid}",
        f"/trainshed/v1/jobs/{uid}/timeline",
    }
    for pages in ("http://127.0.0.1:8080", "https://training.example.org"):
        service.serve(settings=replace(SETTINGS, pages=pages))
        for path in shown:
            text = json.dumps(await service.result("GET", path))
            assert f"please check the logs: {pages}/jobs/{uid}" in text, path
            assert text.count("please check the logs: ") == text.count(f"{pages}/jobs/{uid}"), path
        filter_ = f'resource.labels.job_id="{uid}"'
        query = {"projectIds": [name.split("/")[1]], "filter": filter_}
        entries = await service.result("POST", "/v2/entries:list", query)
        assert f"{pages}/jobs/{uid}" in json.dumps(entries)


async def test_cancel_is_stored_as_an_intent_and_can_be_repeated(service: ApiService) -> None:
    """spec/lifecycle#cancel."""
    name = await create_job(service)
    for _ in range(2):
        answer = await service.call("POST", f"/v1/{name}:cancel", {})
        assert (answer.status, answer.json) == (200, {})
    assert service.woken == [1000, 1000, 1000]
    live = await service.store.ledger.load(service.woken[0])
    assert live is not None
    wish = CancelRequested(CancelCause.USER, START, Actor("owner@trainshed.local"))
    assert [intent.event for intent in live.intents] == [wish]


async def test_cancel_of_a_finished_or_unknown_job_is_rejected(service: ApiService) -> None:
    name = await create_job(service)
    await finish(service, name)
    over = await service.call("POST", f"/v1/{name}:cancel", {})
    assert (over.status, over.error["status"]) == (400, "FAILED_PRECONDITION")
    assert (await service.call("POST", f"{JOBS}/9:cancel", {})).status == 404


async def test_cancelled_custom_job_has_state_and_error(service: ApiService) -> None:
    name = await create_job(service)
    await service.apply_events(name, CancelRequested(CancelCause.USER, START))
    view = await service.result("GET", f"/v1/{name}")
    assert (view["state"], view["error"]["code"]) == ("JOB_STATE_CANCELLED", 1)
    # Prefect's worker reports a failure unless the message contains this word.
    assert view["error"]["message"] == "CANCELED: The job was cancelled by the user."


async def test_delete_returns_a_finished_operation_that_can_be_polled(service: ApiService) -> None:
    """spec/clients#operations: REST clients poll at a path below /ui/."""
    name = await create_job(service)
    refused = await service.call("DELETE", f"/v1/{name}")
    assert (refused.status, refused.error["status"]) == (400, "FAILED_PRECONDITION")
    service.write_log(1000, "workerpool0-0", (START, "x"))
    await finish(service, name)
    operation = await service.result("DELETE", f"/v1/{name}")
    assert operation["done"] is True
    assert operation["response"] == {"@type": "type.googleapis.com/google.protobuf.Empty"}
    assert operation["metadata"]["@type"].endswith("aiplatform.v1.DeleteOperationMetadata")
    assert operation["name"].startswith("projects/p1/locations/us-central1/operations/")
    for path in ("/v1/", "/ui/"):
        assert await service.result("GET", path + operation["name"]) == operation
    assert await service.result("POST", f"/v1/{operation['name']}:wait", {}) == operation
    assert await service.result("POST", f"/v1/{operation['name']}:cancel") == {}
    listed = await service.result("GET", f"{LOCATION}/operations")
    assert listed == {"operations": [operation]}
    assert (await service.call("GET", f"/v1/{name}")).status == 404
    assert not (service.log_root / "1000").exists()


async def test_custom_job_lists_support_filters_pages_and_masks(service: ApiService) -> None:
    """spec/clients#partial-answers"""
    names = [await create_job(service, f"run_{n}", labels={"n": str(n % 2)}) for n in range(5)]
    await finish(service, names[2])

    async def list_jobs(query: str) -> Any:
        return await service.result("GET", f"{JOBS}?{query}")

    everything = await list_jobs("")
    assert [job["name"] for job in everything["customJobs"]] == names[::-1]
    done = await list_jobs("filter=" + quote('state="JOB_STATE_SUCCEEDED"'))
    assert [job["name"] for job in done["customJobs"]] == [names[2]]
    odd = await list_jobs("filter=" + quote('labels.n=1 AND display_name:"run_*"'))
    assert [job["displayName"] for job in odd["customJobs"]] == ["run_3", "run_1"]
    assert await list_jobs("fields=nextPageToken&readMask=*") == everything
    spec = {"workerPoolSpecs": done["customJobs"][0]["jobSpec"]["workerPoolSpecs"]}
    masked = await list_jobs("pageSize=1&readMask=labels,jobSpec.workerPoolSpecs")
    assert masked["customJobs"] == [{"labels": {"n": "0"}, "jobSpec": spec}]

    seen: list[str] = []
    token = ""
    while True:
        page = await list_jobs(f"pageSize=2&pageToken={token}")
        seen += [job["name"] for job in page["customJobs"]]
        await create_job(service, "later")  # New jobs do not change the following pages.
        token = page.get("nextPageToken", "")
        if not token:
            break
        # The token contains the start of this list's next page. Another list must not accept it.
        other = await service.call("GET", f"{LOCATION}/trainingPipelines?pageToken={token}")
        assert fields(other) == {"page_token"}
    assert seen == names[::-1]


async def test_method_override_header_applies_only_to_post(service: ApiService) -> None:
    """spec/clients#method-override."""
    name = await create_job(service, "run")
    path = f"/v1/{name}"

    async def status(sent: str, meant: str) -> int:
        headers = [("X-HTTP-Method-Override", meant)]
        return (await service.call(sent, path, headers=headers)).status

    await finish(service, name)
    assert await status("POST", "get") == 200
    assert await status("GET", "DELETE") == 200
    assert await status("POST", "FOO") == 404
    assert await status("POST", "DELETE") == 200
    assert await status("GET", "GET") == 404


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("filter=colour%3Dred", "filter"),
        ("pageSize=-1", "page_size"),
        ("readMask=customJobs.name", "read_mask"),
        ("pageToken=AAAA", "page_token"),
        ("colour=red", "colour"),
    ],
)
async def test_invalid_list_request_error_names_the_wrong_field(
    service: ApiService, query: str, field: str
) -> None:
    await create_job(service)
    assert fields(await service.call("GET", f"{JOBS}?{query}")) == {field}


async def test_locations_are_listed_in_pages(service: ApiService) -> None:
    answer = await service.result("GET", f"{LOCATION}")
    assert (answer["name"], answer["locationId"]) == (LOCATION[4:], "us-central1")
    first = await service.result("GET", "/v1/projects/p1/locations?pageSize=5")
    rest = await service.call("GET", f"/v1/projects/p1/locations?pageToken={first['nextPageToken']}")
    names = [place["locationId"] for place in first["locations"] + rest.json["locations"]]
    assert len(first["locations"]) == 5
    assert names == sorted(set(names))
    assert (await service.call("GET", "/v1/projects/p1/locations/mars-1")).status == 404


async def test_project_number_is_equivalent_to_its_id(service: ApiService) -> None:
    """spec/clients#projects: programs find the number in CLOUD_ML_PROJECT_ID and use it to log and
    to list."""
    service.serve(settings=replace(SETTINGS, project="p1"))
    numbered = LOCATION.replace("p1", str(project_number("p1")))
    name = await create_job(service)
    listed = await service.call("GET", f"{numbered}/customJobs")
    assert [job["name"] for job in listed.json["customJobs"]] == [name]
    boards = f"{numbered}/tensorboards"
    operation = await service.call("POST", boards, {"displayName": "curves"})
    board = operation.json["response"]["name"]
    assert board.startswith("projects/p1/")
    await service.call("POST", f"{numbered}/metadataStores?metadataStoreId=default", {})
    contexts = f"{numbered}/metadataStores/default/contexts"
    await service.call("POST", f"{contexts}?contextId=runs", {"displayName": "runs"})
    context = await service.result("GET", f"{LOCATION}/metadataStores/default/contexts/runs")
    assert context["name"].startswith("projects/p1/")
    below = f'parent_contexts: "{numbered.removeprefix("/v1/")}/metadataStores/default/contexts/runs"'
    assert await service.result("GET", f"{contexts}?filter={quote(below)}") == {}
    spec = custom_job()["jobSpec"] | {"tensorboard": board.replace("p1", str(project_number("p1")))}
    spec |= {"serviceAccount": "a@p1.iam.gserviceaccount.com"}
    spec |= {"baseOutputDirectory": {"outputUriPrefix": "gs://own/out"}}
    service.buckets.ensure("own", "US", "p1")
    # A body of this size is decoded outside the event loop.
    spec["workerPoolSpecs"][0]["pythonPackageSpec"]["args"] = ["x" * 1000] * 20
    job = await service.call("POST", f"{numbered}/customJobs", custom_job() | {"jobSpec": spec})
    assert job.json["jobSpec"]["tensorboard"] == board, job.body
    other = await service.call("GET", "/v1/projects/123456789012/locations/us-central1/customJobs")
    assert other.json == {}
