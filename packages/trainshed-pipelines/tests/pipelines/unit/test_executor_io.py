"""The ExecutorInput of a task, and the outputs of its program."""

import pytest

from trainshed_pipelines.runs.executor_io import executor_input, read_outputs
from trainshed_pipelines.runs.records import Artifact, Values
from trainshed_pipelines.template import structures as ir
from trainshed_pipelines.template.structures import ArtifactType, Json

ANY, MODEL = ArtifactType(), ArtifactType("system.Model")
COMPONENT = ir.Component(
    name="comp-train",
    input_parameters={"status": ir.InputParameter(ir.ParameterType.FINAL_STATUS)},
    output_parameters={"count": ir.ParameterType.INTEGER, "text": ir.ParameterType.STRING},
    output_artifacts={
        "model": ir.OutputArtifact(MODEL, metadata={"framework": "jax", "layers": 1}),
        "parts": ir.OutputArtifact(ANY, is_list=True),
    },
    implementation=ir.Container("image"),
)
DIRECTORY = "gs://bucket/root/123/job-1/train_77"
INPUTS = Values(
    {"epochs": 3, "pipelinechannel--x": "y", "status": '{"state": "FAILED"}'},
    {
        "data": (Artifact("a/1", ArtifactType("system.Dataset"), "gs://b/d", {"rows": 2}),),
        "custom": (Artifact("a/2", ArtifactType(instance_schema="title: X"), "gs://b/1"),),
        "several": (Artifact("", ANY, "gs://b/2"), Artifact("a/3", ANY, "gs://b/3")),
    },
)
PLANNED = executor_input(COMPONENT, INPUTS, DIRECTORY)[1]
FILES = {"count": "5", "text": "from file"}


def artifacts(*fields: tuple[str, str, dict[str, Json]], title: str = "system.Artifact") -> dict[str, Json]:
    """Return a list of artifacts in an ExecutorInput: their names, URIs and metadata."""
    kind = {"schemaTitle": title, "schemaVersion": "0.0.1"}
    if title.startswith("title:"):
        kind = {"instanceSchema": title}
    keys = ("name", "uri", "metadata")
    return {"artifacts": [{**dict(zip(keys, part, strict=True)), "type": kind} for part in fields]}


def test_executor_input_contains_all_inputs_and_the_places_of_all_outputs() -> None:
    value, planned = executor_input(COMPONENT, INPUTS, DIRECTORY)
    here = "/gcs/bucket/root/123/job-1/train_77"
    model = {"framework": "jax", "layers": 1}
    status = {"state": "FAILED"}
    parameters = {"epochs": 3, "pipelinechannel--x": "y", "status": status}
    assert value["inputs"]["parameterValues"] == parameters
    assert value["inputs"]["artifacts"] == {
        "data": artifacts(("a/1", "gs://b/d", {"rows": 2}), title="system.Dataset"),
        "custom": artifacts(("a/2", "gs://b/1", {}), title="title: X"),
        "several": artifacts(("several", "gs://b/2", {}), ("a/3", "gs://b/3", {})),
    }
    assert value["outputs"] == {
        "parameters": {"count": {"outputFile": f"{here}/count"}, "text": {"outputFile": f"{here}/text"}},
        "artifacts": {
            "model": artifacts(("model", f"{DIRECTORY}/model", model), title="system.Model"),
            "parts": artifacts(("parts", f"{DIRECTORY}/parts", {})),
        },
        "outputFile": f"{here}/executor_output.json",
    }
    assert [a.uri for a in planned.artifacts["model"]] == [f"{DIRECTORY}/model"]
    assert planned.parameters == {}


def test_executor_input_omits_empty_maps() -> None:
    empty = ir.Component(name="comp-x", implementation=ir.Container("image"))
    value, planned = executor_input(empty, Values(), "gs://b/t")
    assert value == {"inputs": {}, "outputs": {"outputFile": "/gcs/b/t/executor_output.json"}}
    assert planned == Values()


@pytest.mark.parametrize("output", [None, {}, {"parameterValues": {}, "artifacts": {}}])
def test_outputs_are_read_from_files_without_an_executor_output(output: Json) -> None:
    outputs = read_outputs(COMPONENT, PLANNED, output, FILES)
    assert outputs == Values({"count": 5, "text": "from file"}, PLANNED.artifacts)


@pytest.mark.parametrize(
    ("output", "parameters"),
    [
        ({"parameterValues": {"count": 7.0, "other": 1}}, {"count": 7, "text": "from file"}),
        ({"parameterValues": {"count": 1, "text": "output"}}, {"count": 1, "text": "output"}),
        ({"parameters": {"count": {"intValue": "9"}}}, {"count": 9, "text": "from file"}),
        (
            {"parameters": {"count": {"doubleValue": 4.0}, "text": {"stringValue": ""}}},
            {"count": 4, "text": ""},
        ),
    ],
)
def test_executor_output_takes_precedence_over_files(output: Json, parameters: dict[str, Json]) -> None:
    outputs = read_outputs(COMPONENT, PLANNED, output, FILES)
    assert outputs.parameters == parameters
    assert isinstance(outputs.parameters["count"], int)


@pytest.mark.parametrize(
    ("written", "uri", "metadata"),
    [
        ({"name": "n", "uri": "", "metadata": None}, f"{DIRECTORY}/model", {}),
        ({"uri": "gs://other/m"}, "gs://other/m", {}),
        ({"metadata": {"layers": 2, "f": [1]}}, f"{DIRECTORY}/model", {"layers": 2, "f": [1]}),
        ({"custom_path": "/gcs/bucket/own"}, "gs://bucket/own", {}),
        ({"uri": "gs://x", "customPath": "/gcs/bucket/own"}, "gs://bucket/own", {}),
    ],
)
def test_program_changes_its_output_artifact(written: Json, uri: str, metadata: dict[str, Json]) -> None:
    output = {"artifacts": {"model": {"artifacts": [written, {"uri": "ignored"}]}, "other": {}}}
    (model,) = read_outputs(COMPONENT, PLANNED, output, FILES).artifacts["model"]
    expected = {"framework": "jax", "layers": 1, **metadata}
    assert (model.uri, model.type, model.metadata) == (uri, MODEL, expected)


def test_program_decides_about_the_number_of_artifacts_in_a_list() -> None:
    def parts(written: Json) -> list[str]:
        outputs = read_outputs(COMPONENT, PLANNED, {"artifacts": written}, FILES)
        return [artifact.uri for artifact in outputs.artifacts["parts"]]

    assert parts({}) == [f"{DIRECTORY}/parts"]
    assert parts({"parts": {"artifacts": []}}) == []
    written = [{"uri": "gs://1"}, {"uri": "gs://2"}]
    assert parts({"parts": {"artifacts": written}}) == ["gs://1", "gs://2"]


def test_all_missing_and_wrong_outputs_are_reported_by_name() -> None:
    output = {"artifacts": {"model": {"artifacts": [{"custom_path": "/tmp/model"}]}}}
    with pytest.raises(ValueError, match="'count'") as error:
        read_outputs(COMPONENT, PLANNED, output, {"count": "five", "text": None})
    for part in (
        "The output parameter 'count' is wrong: ",
        "The output parameter 'text' is wrong: The program did not write it.",
        "The output artifact 'model' is wrong: The program has set its path to /tmp/model",
        "/gcs/bucket/root/123/job-1/train_77/model",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize(
    "output",
    [
        [1],
        "text",
        {"parameterValues": [1]},
        {"artifacts": {"model": {"artifacts": [{"uri": 5}]}}},
        {"artifacts": {"model": {"artifacts": [{"metadata": [1]}]}}},
    ],
)
def test_malformed_executor_output_is_refused(output: Json) -> None:
    with pytest.raises(ValueError, match="is not valid: Expected"):
        read_outputs(COMPONENT, PLANNED, output, FILES)
