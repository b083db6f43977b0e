"""Recognition, refusal and arguments of Google Cloud Pipeline Components."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.pipelines.unit.google_samples import IMAGE, component, container, dataset, launcher, template
from tests.pipelines.unit.pipelines_of import FACTS
from trainshed_pipelines.runs.google_components import (
    Operation,
    component_faults,
    for_payload,
    operation_of,
    read_flags,
    read_object,
    read_uris,
)
from trainshed_pipelines.template import structures as ir

LIST = ir.InputParameter(ir.ParameterType.LIST, is_optional=True)
TEXT = ir.InputParameter(ir.ParameterType.STRING, is_optional=True)


SERVED = {
    Operation.CUSTOM_JOB: [
        launcher("CustomJob", "custom_job"),
        launcher("CustomJob", "gcp_launcher"),
        launcher("CustomJob", "custom_job", image="mirror/components:1"),
    ],
    Operation.TUNING_JOB: [launcher("HyperparameterTuningJob", "hyperparameter_tuning_job")],
    Operation.UPLOAD_MODEL: [launcher("UploadModel", "model.upload_model")],
    Operation.GET_MODEL: [component("model.get_model.launcher")],
    Operation.CREATE_DATASET: [dataset(k) for k in ("Tabular", "TimeSeries", "Image", "Text")],
    Operation.UNSERVED: [dataset("Video"), dataset("Image", "import_data")],
}
AUTOML = ("--cls_name", "AutoMLTabularTrainingJob", "--method_name", "run")


@pytest.mark.parametrize("operation", SERVED)
def test_component_is_recognized_by_its_program(operation: Operation) -> None:
    assert {operation_of(sample) for sample in SERVED[operation]} == {operation}


def test_other_components_are_not_recognized() -> None:
    assert operation_of(container("a", "python3", "-m", "task", "--type", "CustomJob")) is None
    assert operation_of(container("a", "python3", "-m")) is None
    assert operation_of(container("us-docker.pkg.dev/p/automl/image")) is None
    importer = ir.Importer(ir.Constant("gs://b"), ir.ArtifactType())
    assert operation_of(ir.Component(name="c", implementation=importer)) is None


@pytest.mark.parametrize(
    ("sample", "advice"),
    [
        (launcher("BigqueryQueryJob", "bigquery.query_job"), "bq extract"),
        (launcher("CreateEndpoint", "endpoint.create_endpoint"), "does not deploy them"),
        (launcher("DeployModel", "gcp_launcher"), "does not deploy them"),
        (launcher("BatchPredictionJob", "batch_prediction_job"), "batch predictions in a custom"),
        (launcher("Wait", "wait_gcp_resources"), "in the program of a customJob"),
        (component("vertex_notification_email.executor"), "trainshed-notify=TARGET"),
        (dataset("Video"), "create a tabular dataset"),
        (component("aiplatform.remote_runner", *AUTOML), "AutoML is not supported"),
        (container("us-docker.pkg.dev/vertex-ai/automl-tabular/x:1"), "AutoML is not supported"),
        (container(IMAGE), "packages_to_install"),
    ],
)
def test_unserved_component_is_refused_with_advice(sample: ir.Component, advice: str) -> None:
    served = launcher("CustomJob", "custom_job", name="comp-served")
    sample = replace(sample, name="comp-mine")
    (fault,) = component_faults(template(served, sample))
    assert fault.field == "pipeline_spec.components.comp-mine"
    assert fault.description.startswith("The component 'mine' is not served here. ")
    assert advice in fault.description


def test_payload_contains_the_resolved_programs_of_worker_pools() -> None:
    note = "a \"b\" {{$.inputs.parameters['name']}}\n"
    command = ["run", "{{$.json_escape[1]}}", "{{$.inputs.parameters['note']}}"]
    args = ["{{$.outputs.artifacts['model'].path}}", "--job={{$.pipeline_job_name}}"]
    pools: list[Any] = [{"container_spec": {"command": command, "args": args}, "replica_count": 1}]
    planned = {"model": {"artifacts": [{"uri": "gs://b/model"}]}}
    task_input = {"inputs": {"parameterValues": {"note": note}}, "outputs": {"artifacts": planned}}
    parameters = {"note": note, "name": "n", "worker_pool_specs": pools}
    context = replace(FACTS, parameters=parameters, executor_input=task_input)
    inputs = {"worker_pool_specs": LIST, "ranges": LIST, "account": TEXT}
    sample = launcher("CustomJob", "custom_job", input_parameters=inputs)
    payload = (
        '{"display_name": "{{$.inputs.parameters[\'name\']}}", "job_spec": {"ranges": '
        "{{$.inputs.parameters['ranges']}}, \"account\": \"{{$.inputs.parameters['account']}}\", "
        "\"worker_pool_specs\": {{$.inputs.parameters['worker_pool_specs']}}}}"
    )
    resolved = for_payload(context, sample).resolve_args(["--payload", payload])
    public = read_object(read_flags(resolved), "payload")
    (pool,) = public["job_spec"].pop("worker_pool_specs")
    assert public == {"display_name": "n", "job_spec": {}}
    run, executor_input, text = pool["container_spec"]["command"]
    assert (run, json.loads(executor_input), text) == ("run", task_input, note)
    assert pool["container_spec"]["args"] == ["/gcs/b/model", "--job=run"]


def test_objects_are_read_without_empty_fields() -> None:
    text = '{"a": {"b": ""}, "c": [{}, "", 0, {"d": []}], "e": 0, "f": "line\nbreak"}'
    assert read_object({"p": text}, "p") == {"c": ["", 0], "f": "line\nbreak"}
    assert read_object({}, "p") == {}


@pytest.mark.parametrize("text", ["{", "[]", '"text"', "[" * 100_000])
def test_malformed_object_is_an_error_with_its_argument(text: str) -> None:
    with pytest.raises(ValueError, match="The argument --labels of the component is not"):
        read_object({"labels": text}, "labels")


def test_sources_are_one_uri_or_a_list() -> None:
    assert read_uris("") == []
    assert read_uris("gs://b/f") == ["gs://b/f"]
    assert read_uris("['gs://b/f', 'gs://b/g']") == ["gs://b/f", "gs://b/g"]
    assert read_uris("[" * 100_000) == ["[" * 100_000]
