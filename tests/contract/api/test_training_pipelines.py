"""`aiplatform` v1 training pipelines over REST against a real store; the test acts as the
controller (facts/resources#pipelines, facts/packaging#measured)."""

from typing import Any

import pytest

from tests.contract.api.api_service import LOCATION, SECOND, START, ApiService
from tests.contract.api.violations import violations
from tests.unit.specs_requests import package
from tests.unit.test_specs_pipeline import CUSTOM, MODEL, TUNING, inputs, pipeline, tuning_inputs
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid, ModelName
from trainshed.core.tuning.records import TuningJob

PIPELINES = f"{LOCATION}/trainingPipelines"
PLACE = "projects/p1/locations/us-central1"

SDK_INPUTS: dict[str, Any] = {
    "worker_pool_specs": [
        {
            "machine_spec": {"machine_type": "n1-standard-4"},
            "replica_count": 1.0,
            "disk_spec": {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": 100.0},
            "pythonPackageSpec": {
                "executorImageUri": package()["pythonPackageSpec"]["executorImageUri"],
                "packageUris": ["gs://bucket/trainer-0.1.tar.gz"],
                "python_module": "trainer.task",
                "args": ["--steps", 10.0, "--rate", 0.5, "--name", "a"],
            },
        }
    ],
    "base_output_directory": {"output_uri_prefix": "gs://bucket/out"},
    "scheduling": {"timeout": "7200s", "strategy": None, "max_wait_duration": None},
}
"""facts/packaging#measured: the SDK sends mixed spellings, integers as floats, numbers as
arguments, and explicit nulls."""


def pipeline_body(task_inputs: Any = None, **changes: Any) -> dict[str, Any]:
    return pipeline(trainingTaskInputs=inputs() if task_inputs is None else task_inputs, **changes)


async def create_pipeline(service: ApiService, task_inputs: Any = None, **changes: Any) -> dict[str, Any]:
    return await service.result("POST", PIPELINES, pipeline_body(task_inputs, **changes))


async def test_created_pipeline_has_a_custom_job(service: ApiService) -> None:
    """facts/resources#pipelines: the state is PENDING from the start. The SDK follows
    metadata.backingCustomJob."""
    view = await create_pipeline(service, labels={"team": "a"})
    assert view["name"] == f"{PLACE}/trainingPipelines/1000"
    assert view["state"] == "PIPELINE_STATE_PENDING"
    assert view["createTime"] == "2025-10-09T08:53:20Z"
    assert "startTime" not in view
    assert view["trainingTaskMetadata"] == {"backingCustomJob": f"{PLACE}/customJobs/1001"}
    assert await service.result("GET", f"/v1/{view['name']}") == view
    child = await service.result("GET", f"/v1/{PLACE}/customJobs/1001")
    assert (child["displayName"], child["labels"]) == ("pipeline-custom-job", {"team": "a"})
    assert child["jobSpec"] == inputs()
    (stored,) = await service.store.reader.children(JobUid(1000))
    assert isinstance(stored, Job) and stored.parent is not None
    assert str(stored.parent.name) == view["name"]
    assert service.woken == [1000, 1001]
    listed = (await service.result("GET", f"{LOCATION}/customJobs"))["customJobs"]
    assert [job["name"] for job in listed] == [child["name"]]


async def test_task_inputs_are_accepted_in_the_sdks_mixed_spellings(service: ApiService) -> None:
    """spec/clients#task-inputs, facts/packaging#measured: the inputs are parsed as a CustomJobSpec
    and returned unchanged."""
    view = await create_pipeline(service, SDK_INPUTS)
    assert view["trainingTaskInputs"] == SDK_INPUTS
    child = await service.result("GET", f"/v1/{PLACE}/customJobs/1001")
    (only,) = child["jobSpec"]["workerPoolSpecs"]
    assert (only["replicaCount"], only["diskSpec"]["bootDiskSizeGb"]) == ("1", 100)
    assert only["pythonPackageSpec"]["args"] == ["--steps", "10", "--rate", "0.5", "--name", "a"]
    assert child["jobSpec"]["scheduling"] == {"timeout": "7200s"}


async def test_pipeline_with_tuning_task_creates_a_tuning_job(service: ApiService) -> None:
    view = await create_pipeline(service, tuning_inputs(), trainingTaskDefinition=TUNING)
    name = f"{PLACE}/hyperparameterTuningJobs/1001"
    assert view["trainingTaskMetadata"] == {"backingHyperparameterTuningJob": name}
    child = await service.result("GET", f"/v1/{name}")
    assert child["displayName"] == "pipeline-hyperparameter-tuning-job"
    assert child["maxTrialCount"] == 2
    (stored,) = await service.store.reader.children(JobUid(1000))
    assert isinstance(stored, TuningJob)
    await service.update_job(view["name"], best_job=JobUid(5))
    metadata = (await service.result("GET", f"/v1/{view['name']}"))["trainingTaskMetadata"]
    assert metadata["bestTrialBackingCustomJob"] == f"{PLACE}/customJobs/5"


async def test_finished_pipeline_contains_its_uploaded_model(service: ApiService) -> None:
    """The SDK reads model_to_upload.name and version_id."""
    view = await create_pipeline(service, modelToUpload=MODEL)
    assert "name" not in view["modelToUpload"]
    model = ModelName("p1", "us-central1", "m")
    await service.update_job(
        view["name"], state=JobState.SUCCEEDED, started=START, ended=START + SECOND, model=f"{model}@2"
    )
    shown = await service.result("GET", f"/v1/{view['name']}")
    assert shown["state"] == "PIPELINE_STATE_SUCCEEDED"
    assert shown["startTime"] == "2025-10-09T08:53:20Z"
    assert shown["endTime"] == "2025-10-09T08:53:21Z"
    assert shown["modelToUpload"] == MODEL | {"name": str(model), "versionId": "2"}


@pytest.mark.parametrize(
    ("definition", "task_inputs", "field"),
    [
        (TUNING, tuning_inputs(displayName="x"), "training_task_inputs.displayName"),
        (CUSTOM, ["x"], "training_task_inputs"),
        (CUSTOM, "x", "training_task_inputs"),
        (CUSTOM, {}, "training_task_inputs.worker_pool_specs"),
        ("gs://x/automl_image_classification_1.0.0.yaml", {}, "training_task_definition"),
    ],
)
async def test_invalid_task_inputs_are_rejected(
    service: ApiService, definition: str, task_inputs: Any, field: str
) -> None:
    body = pipeline(trainingTaskDefinition=definition, trainingTaskInputs=task_inputs)
    assert field in violations(await service.call("POST", PIPELINES, body))


async def test_existing_model_id_is_rejected_before_the_training(service: ApiService) -> None:
    await service.result("POST", f"{LOCATION}/models:upload", {"modelId": "m1", "model": MODEL})
    answer = await service.call("POST", PIPELINES, pipeline_body(modelToUpload=MODEL, modelId="m1"))
    assert (answer.status, answer.error["status"]) == (409, "ALREADY_EXISTS")
    elsewhere = PIPELINES.replace("/p1/", "/p2/")
    version = pipeline_body(modelToUpload=MODEL, parentModel=f"{PLACE}/models/m1")
    assert set(violations(await service.call("POST", elsewhere, version))) == {"parent_model"}
    view = await create_pipeline(service, modelToUpload=MODEL, parentModel=f"{PLACE}/models/m1")
    assert view["parentModel"] == f"{PLACE}/models/m1"


async def test_pipelines_are_filtered_by_state_and_task(service: ApiService) -> None:
    """facts/resources#vertex: the filter training_task_definition is supported too."""
    custom = (await create_pipeline(service))["name"]
    tuned = (await create_pipeline(service, tuning_inputs(), trainingTaskDefinition=TUNING))["name"]

    async def list_names(filter_: str) -> list[str]:
        answer = await service.result("GET", f"{PIPELINES}?filter={filter_}")
        return [resource["name"] for resource in answer.get("trainingPipelines", [])]

    assert await list_names("") == [tuned, custom]
    assert await list_names(f'training_task_definition="{CUSTOM}"') == [custom]
    assert await list_names('trainingTaskDefinition:"*hyperparameter*"') == [tuned]
    assert await list_names('state="PIPELINE_STATE_PENDING"') == [tuned, custom]
    assert await list_names('state!="PIPELINE_STATE_PENDING"') == []
    answer = await service.call("GET", f"{PIPELINES}?filter=state=JOB_STATE_RUNNING")
    assert set(violations(answer)) == {"filter"}


async def test_pipeline_is_cancelled_and_then_deleted(service: ApiService) -> None:
    name = (await create_pipeline(service))["name"]
    assert await service.result("POST", f"/v1/{name}:cancel") == {}
    live = await service.store.ledger.load(JobUid(1000))
    assert live is not None and len(live.intents) == 1
    assert (await service.call("DELETE", f"/v1/{name}")).error["status"] == "FAILED_PRECONDITION"
    await service.update_job(name, state=JobState.CANCELLED, ended=START)
    assert (await service.result("DELETE", f"/v1/{name}"))["done"] is True
    assert (await service.call("GET", f"/v1/{name}")).status == 404
    assert (await service.call("GET", f"/v1/{PLACE}/customJobs/1001")).status == 200
