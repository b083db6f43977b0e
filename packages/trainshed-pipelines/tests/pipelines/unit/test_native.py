"""Google Cloud Pipeline Components on the real API and store: their jobs, models and datasets, and the rights
of components."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.api.api_service import ApiService
from tests.pipelines.unit.google_samples import MODEL, dataset, launcher
from trainshed.core.environment import service_agent
from trainshed.core.errors import NotFound, PermissionDenied, RequestError
from trainshed.core.lifecycle.records import Actor, Job, Parent
from trainshed.core.names import Api, Collection, JobName, JobUid, project_number
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import Nanos
from trainshed_pipelines.runs.google_components import Operation
from trainshed_pipelines.runs.native import GoogleComponents, job_resources
from trainshed_pipelines.runs.records import Artifact, TaskKind, TaskRun, Values
from trainshed_pipelines.template import structures as ir

PUBLIC = "https://us-central1-aiplatform.googleapis.com/v1"
PLACE = "projects/p1/locations/us-central1"
NOW = Nanos(1_760_000_000 * 10**9)
RUN = PipelineJob(
    uid=JobUid(7),
    name=JobName(Api.VERTEX, "p1", "us-central1", "iris-1", Collection.PIPELINE_JOBS),
    display_name="Iris",
    public_json="{}",
    created=NOW,
    updated=NOW,
    labels=(("team", "a"),),
    template="iris",
    root="gs://bucket/root",
    creator=Actor("ana@corp.example"),
)
TASK = TaskRun(number=3, component="comp-x", kind=TaskKind.NATIVE, created=NOW)
IMAGE = "us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest"
PROGRAM = {"image_uri": IMAGE, "command": ["true"]}
POOL = {"machine_spec": {"machine_type": "n1-standard-4"}, "container_spec": PROGRAM}
SPEC: dict[str, Any] = {
    "worker_pool_specs": [{**POOL, "replica_count": 1}],
    "service_account": "",
    "scheduling": {"strategy": "STANDARD", "max_wait_duration": "86400s", "timeout": "60s"},
}
UPLOAD = launcher("UploadModel", "model.upload_model", output_artifacts={"model": ir.OutputArtifact(MODEL)})
UNMANAGED = Artifact("", ir.ArtifactType(), "gs://bucket/m", {"containerSpec": {"imageUri": "server:1"}})
WITH_FILES = replace(TASK, inputs=Values(artifacts={"unmanaged_container_model": (UNMANAGED,)}))
ACCOUNT, OTHER = "trainer@p1.iam.gserviceaccount.com", "admin@p1.iam.gserviceaccount.com"


@pytest.fixture
def components(service: ApiService) -> GoogleComponents:
    return GoogleComponents(service.services, service.registry)


def payload(content: Any, *args: str) -> tuple[str, ...]:
    return ("--type", "X", "--payload", json.dumps(content), *args)


def custom(*args: str, **spec: Any) -> tuple[str, ...]:
    job = {"display_name": "train", "job_spec": {**SPEC, **spec}, "labels": {"kind": "custom"}}
    return payload(job, *args)


def resource_of(written: dict[str, Any]) -> str:
    ((item,),) = (outputs["artifacts"] for outputs in written["artifacts"].values())
    assert item["uri"] == f"{PUBLIC}/{item['metadata']['resourceName']}"
    return item["metadata"]["resourceName"]


async def test_custom_job_is_created_from_the_payload(components: GoogleComponents) -> None:
    job = (await components.new_job(RUN, Operation.CUSTOM_JOB, custom())).job
    assert isinstance(job, Job)
    assert (job.display_name, job.parent) == ("train", Parent(RUN.uid, RUN.name))
    assert dict(job.labels) == {"team": "a", "kind": "custom"}
    # The component always sends the maximum wait, which applies only to FLEX_START.
    assert job.spec.scheduling.max_wait is None
    (resource,) = json.loads(job_resources(job.name))["resources"]
    assert resource == {"resourceType": "CustomJob", "resourceUri": f"{PUBLIC}/{job.name}"}


async def test_tuning_job_is_created_from_the_payload(components: GoogleComponents) -> None:
    scale = {"min_value": 0.0, "max_value": 1.0}
    study = {
        "metrics": [{"metric_id": "loss", "goal": 2}],
        "parameters": [{"parameter_id": "x", "double_value_spec": scale, "scale_type": 1}],
    }
    counts = {"max_trial_count": 3, "parallel_trial_count": 2, "max_failed_trial_count": 0}
    content = {"display_name": "tune", "study_spec": study, "trial_job_spec": SPEC, **counts}
    args = payload(content, "--location", "europe-west4")
    job = (await components.new_job(RUN, Operation.TUNING_JOB, args)).job
    assert isinstance(job, TuningJob)
    assert (job.spec.max_trials, job.name.location) == (3, "europe-west4")
    assert "HyperparameterTuningJob" in job_resources(job.name)


@pytest.mark.parametrize("own", [None, ACCOUNT])
async def test_job_has_the_account_of_the_pipeline_job(components: GoogleComponents, own: str | None) -> None:
    run = replace(RUN, service_account=own)
    for requested in ("", (own or service_agent("p1")).upper()):
        args = custom(service_account=requested)
        job = (await components.new_job(run, Operation.CUSTOM_JOB, args)).job
        assert isinstance(job, Job)
        assert job.spec.service_account == own
    for key in ("service_account", "serviceAccount"):
        with pytest.raises(PermissionDenied, match="requests the service account admin@p1"):
            await components.new_job(run, Operation.CUSTOM_JOB, custom(**{key: OTHER}))


async def test_faulty_payload_is_an_error(components: GoogleComponents) -> None:
    faulty: list[Any] = [{}, {"display_name": 3}, {"job_spec": []}, {"x": 1}, {"labels": [1]}]
    for content in faulty:
        for operation in (Operation.CUSTOM_JOB, Operation.TUNING_JOB):
            with pytest.raises((RequestError, ValueError)):
                await components.new_job(RUN, operation, payload(content))


async def test_component_cannot_use_another_project(components: GoogleComponents) -> None:
    for project in ("p1", str(project_number("p1"))):
        await components.new_job(RUN, Operation.CUSTOM_JOB, custom("--project", project))
    with pytest.raises(PermissionDenied, match="requests the project 'p2'"):
        await components.new_job(RUN, Operation.CUSTOM_JOB, custom("--project", "p2"))
    with pytest.raises(NotFound, match="mars-1"):
        await components.new_job(RUN, Operation.CUSTOM_JOB, custom("--location", "mars-1"))


async def test_model_is_uploaded_once(service: ApiService, components: GoogleComponents) -> None:
    name = f"{PLACE}/models/run-7-3"
    args = payload({"display_name": "m", "labels": {"a": "b"}, "explanation_spec": {"x": {}}})
    written = await components.carry_out(RUN, WITH_FILES, UPLOAD, args)
    assert resource_of(written) == f"{name}@1"
    (resource,) = json.loads(written["parameterValues"]["gcp_resources"])["resources"]
    assert resource["resourceType"] == "VertexLro"
    operation = resource["resourceUri"].partition(".com")[2]
    assert (await service.result("GET", operation))["response"]["model"] == name
    model = await service.result("GET", f"/v1/{name}")
    assert (model["artifactUri"], model["pipelineJob"]) == ("gs://bucket/m", str(RUN.name))
    assert model["containerSpec"] == {"imageUri": "server:1"}
    assert model["labels"] == {"a": "b", "trainshed-task": "7-3"}
    again = await components.carry_out(RUN, WITH_FILES, UPLOAD, args)
    assert again["artifacts"] == written["artifacts"]
    # Versions of a parent model.
    args, task = payload({"display_name": "m2"}, "--parent_model_name", f"{name}@1"), TASK
    for number in (4, 4, 5):
        written = await components.carry_out(RUN, replace(task, number=number), UPLOAD, args)
        assert resource_of(written) == f"{name}@{number - 2}"
    stored = Artifact("", MODEL, "", {"resourceName": f"{name}@3"})
    assert await components.exists(stored)
    await service.result("DELETE", f"/v1/{name}")
    assert not await components.exists(stored)


async def test_faulty_upload_is_an_error(components: GoogleComponents) -> None:
    other = ("--parent_model_name", "projects/p2/locations/us-central1/models/m")
    fields = {"display_name": "m"}
    for args in (payload({}), payload({**fields, "labels": [1]}), payload(fields, *other)):
        with pytest.raises((RequestError, ValueError)):
            await components.carry_out(RUN, TASK, UPLOAD, args)


def flags(**values: str) -> tuple[str, ...]:
    fields = {"display_name": "d", **values}
    return tuple(word for name, value in fields.items() for word in (f"--method.{name}", value))


async def test_dataset_is_created_once_with_its_files(
    service: ApiService, components: GoogleComponents
) -> None:
    schemas = "gs://google-cloud-aiplatform/schema/dataset/ioformat"
    schema = f"{schemas}/text_classification_single_label_io_format_1.0.0.yaml"
    labels = {"data_item_labels": '{"split": "train"}', "import_schema_uri": schema}
    for number, sample, args in (
        (3, dataset("Tabular"), flags(gcs_source="['gs://bucket/a.csv']")),
        (3, dataset("Tabular"), flags(gcs_source="['gs://bucket/a.csv']")),
        (4, dataset("Text"), flags(gcs_source="gs://bucket/a.jsonl", **labels)),
    ):
        written = await components.carry_out(RUN, replace(TASK, number=number), sample, args)
        assert resource_of(written) == f"{PLACE}/datasets/7-{number}"
    place = {"project_id": "p1", "location": "us-central1"}
    text, table = await service.services.datasets.list(place)
    assert [files.uris for files in table.files] == [("gs://bucket/a.csv",)]
    assert [files.labels for files in text.files] == [(("split", "train"),)]


async def test_faulty_dataset_is_an_error(components: GoogleComponents) -> None:
    for args, fault in (
        (flags(gcs_source="gs://bucket/missing"), "does not exist"),
        (flags(bq_source="bq://p.d.t"), "BigQuery tables are not supported"),
        (flags(encryption_spec_key_name="key"), "Keys of customers"),
        (flags(labels="[1]"), "--labels of the component is not a JSON object"),
    ):
        with pytest.raises((RequestError, ValueError), match=fault):
            await components.carry_out(RUN, TASK, dataset("Tabular"), args)
