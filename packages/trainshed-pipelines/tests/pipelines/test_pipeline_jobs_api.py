"""`aiplatform` v1 PipelineService over REST against a real store: lists, batches and roots."""

from typing import Any

import pytest

from tests.contract.api.violations import fields
from tests.pipelines.test_schedules_api import RUNS, SPEC, SchedulingService
from trainshed.core.lifecycle.states import JobState
from trainshed_pipelines.runs import table

SERVICE_CLASS = SchedulingService


async def create(service: SchedulingService, **spec: Any) -> str:
    job = {"pipelineSpec": SPEC | spec, "runtimeConfig": {"gcsOutputDirectory": "gs://bucket/root"}}
    return (await service.result("POST", RUNS, job))["name"]


async def test_lists_omit_large_compiled_pipelines(
    service: SchedulingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MAX_LISTED_SPEC", 1_000)
    small = await create(service)
    large = await create(service, pipelineInfo={"name": "p", "description": "v" * 2_000})
    jobs = (await service.result("GET", RUNS))["pipelineJobs"]
    assert {job["name"]: "pipelineSpec" in job for job in jobs} == {small: True, large: False}
    assert "pipelineSpec" in await service.result("GET", f"/v1/{large}")


async def test_default_root_in_a_bucket_that_does_not_exist_is_refused(service: SchedulingService) -> None:
    job = {"pipelineSpec": {**SPEC, "defaultPipelineRoot": "gs://missing-bucket/root"}}
    field = "runtime_config.gcs_output_directory"
    assert fields(await service.call("POST", RUNS, job)) == {field}


async def test_repeated_name_in_a_batch_is_refused_before_anything_changes(
    service: SchedulingService,
) -> None:
    name = await create(service)
    body = {"names": [name, name]}
    for method in ("batchCancel", "batchDelete"):
        assert fields(await service.call("POST", f"{RUNS}:{method}", body)) == {"names[1]"}
    assert (await service.result("GET", f"/v1/{name}"))["state"] == "PIPELINE_STATE_QUEUED"


async def test_batch_delete_deletes_finished_pipeline_jobs(service: SchedulingService) -> None:
    names = [await create(service) for _ in range(2)]
    for name in names:
        await service.update_job(name, state=JobState.SUCCEEDED, ended=service.clock)
    done = await service.result("POST", f"{RUNS}:batchDelete", {"names": names})
    assert done["metadata"]["@type"].endswith(".DeleteOperationMetadata")
    assert [job["name"] for job in done["response"]["pipelineJobs"]] == names
    assert await service.runs() == []
