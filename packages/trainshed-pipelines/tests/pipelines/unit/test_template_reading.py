"""Reading compiled pipelines: structures, spellings, deprecated forms, references, and all errors."""

from typing import Any, cast

import pytest

from tests.pipelines.unit.template_samples import DEEP, SPEC, changed, faults
from trainshed.core.requests import snake_case
from trainshed_pipelines.template import structures as ir
from trainshed_pipelines.template.messages import MAX_FAULTS
from trainshed_pipelines.template.reading import MAX_DEPTH, MAX_TASKS, read_template

COMPONENT, IMPORT = "components/comp-train", "components/comp-import"
TRAIN = "components/comp-loop/dag/tasks/train"
OUTPUTS = "components/comp-loop/dag/outputs"
BOUND = f"{TRAIN}/inputs/parameters"
SELECTED = f"{OUTPUTS}/artifacts/model"
TASKS, LOOP, REPORT = "root/dag/tasks", "root/dag/tasks/loop", "root/dag/tasks/report"
INPUT = "root/inputDefinitions/parameters/c"
EXECUTORS = "deploymentSpec/executors"
CONTAINER, EXECUTOR = f"{EXECUTORS}/exec-train/container", f"{EXECUTORS}/exec-report"
IMPORTER = f"{EXECUTORS}/exec-import/importer"
LOSSES, STATUS = f"{REPORT}/inputs/parameters/losses", f"{REPORT}/inputs/parameters/status"
MODELS = f"{REPORT}/inputs/artifacts/models"
OUTPUT, INNER = ".task_output_parameter", ".component_input_parameter"
ONE_OF = {"valueFromOneof": {"parameterSelectors": [{"producerSubtask": "x"}]}}
LOSS = {"valueFromParameter": {"producerSubtask": "train", "outputParameterKey": "loss"}}
MODEL = ir.ArtifactType("system.Model", "0.0.1")


def constant(value: Any) -> dict[str, Any]:
    return {"runtimeValue": {"constant": value}}


def output(task: str, key: str) -> dict[str, Any]:
    return {"taskOutputParameter": {"producerTask": task, "outputParameterKey": key}}


def artifact(task: str, key: str) -> dict[str, Any]:
    return {"taskOutputArtifact": {"producerTask": task, "outputArtifactKey": key}}


def with_floats(value: Any) -> Any:
    """Return a JSON value as a `google.protobuf.Struct` contains it."""
    if isinstance(value, dict):
        return {key: with_floats(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [with_floats(item) for item in cast("list[Any]", value)]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def tasks(template: ir.Template, component: str = "root") -> Any:
    implementation = template.components[component].implementation
    assert isinstance(implementation, ir.Dag)
    return implementation.tasks


def chain(length: int, width: int = 1) -> dict[str, Any]:
    """Return a template of nested components. Each one uses the next one in `width` tasks."""

    def dag(name: str) -> dict[str, Any]:
        return {"dag": {"tasks": {f"t{i}": {"componentRef": {"name": name}} for i in range(width)}}}

    components = {f"c{index}": dag(f"c{index + 1}") for index in range(length)}
    last = {f"c{length}": {"executorLabel": "exec-report"}}
    return changed(("components", components | last), ("root", dag("c0")))


def test_template_contains_the_pipeline_and_its_tasks() -> None:
    template = read_template(SPEC)
    assert (template.name, template.display_name) == ("train-all", "Train")
    assert template.default_root == "gs://bucket/root"
    assert template.components["root"] is template.root
    assert tasks(template)["loop"] == ir.Task(
        name="loop",
        component="comp-loop",
        parameters={"pipelinechannel--source": ir.ParameterBinding(ir.ComponentInput("source"))},
        artifacts={"base": ir.TaskOutput("import", "artifact")},
        dependent_tasks=("import",),
        condition="inputs.parameter_values['pipelinechannel--source'] != ''",
        iterator=ir.Iterator(({"lr": 0.5, "n": 1},), "item", parallelism_limit=2),
    )
    assert tasks(template)["report"].runs_always
    assert tasks(template)["report"].parameters == {
        "losses": ir.ParameterBinding(ir.TaskOutput("loop", "loss")),
        "status": ir.ParameterBinding(ir.FinalStatus("loop")),
    }
    assert tasks(template, "comp-loop")["train"] == ir.Task(
        name="train",
        component="comp-train",
        parameters={
            "lr": ir.ParameterBinding(ir.ComponentInput("item"), 'parseJson(string_value)["lr"]'),
            "mode": ir.ParameterBinding(ir.Constant("fast")),
        },
        artifacts={"base": ir.ComponentInput("base")},
        enable_cache=True,
        cache_key="k",
        retry=ir.RetryPolicy(3, 30 * 10**9, 2.0, 600 * 10**9),
    )


def test_template_contains_components_and_executors() -> None:
    components = read_template(SPEC).components
    train = components["comp-train"]
    assert train.input_parameters == {
        "lr": ir.InputParameter(ir.ParameterType.DOUBLE),
        "epochs": ir.InputParameter(ir.ParameterType.INTEGER, 3, is_optional=True),
        "mode": ir.InputParameter(ir.ParameterType.STRING, is_optional=True, literals=("fast", "slow")),
    }
    assert train.input_artifacts == {"base": ir.InputArtifact(MODEL, is_optional=True)}
    assert train.output_parameters == {"loss": ir.ParameterType.DOUBLE}
    assert train.output_artifacts == {"model": ir.OutputArtifact(MODEL, metadata={"framework": "jax"})}
    assert train.implementation == ir.Container(
        "python:3.11",
        ("sh", "-c", "train"),
        ("--lr", "{{$.inputs.parameters['lr']}}"),
        (("MODE", "fast"), ("EMPTY", "")),
        ir.Resources("500m", "4G", accelerator_type="NVIDIA_L4", accelerator_count="2"),
    )
    metadata = {"source": "{{$.inputs.parameters['uri']}}", "version": 2}
    importer = ir.Importer(ir.ComponentInput("uri"), MODEL, metadata, reimport=True)
    assert components["comp-import"].implementation == importer
    loop = components["comp-loop"].implementation
    assert isinstance(loop, ir.Dag)
    assert loop.output_parameters == {"loss": (ir.TaskOutput("train", "loss"),)}
    assert loop.output_artifacts == {"model": (ir.TaskOutput("train", "model"),)}


def test_integers_may_be_floats_and_names_may_be_in_snake_case() -> None:
    spec = changed(("pipeline_info", SPEC["pipelineInfo"]), ("pipelineInfo", ...))
    assert read_template(with_floats(spec)) == read_template(SPEC)


def test_deprecated_forms_are_read() -> None:
    inputs = f"{COMPONENT}/inputDefinitions/parameters"
    uri = "root/dag/tasks/import/inputs/parameters/uri"
    model = f"{IMPORT}/outputDefinitions/artifacts/artifact/artifactType"
    spec = changed(
        ("schemaVersion", "2.0.0"),
        (f"{inputs}/lr", {"type": "DOUBLE"}),
        (f"{inputs}/epochs", {"type": "INT", "defaultValue": "3"}),
        (f"{inputs}/text", {"type": "STRING"}),
        (f"{BOUND}/lr", {"runtimeValue": {"constantValue": {"doubleValue": 1}}}),
        (f"{BOUND}/epochs", {"runtimeValue": {"constantValue": {"intValue": "7"}}}),
        (f"{BOUND}/text", {"runtimeValue": {"constantValue": {"stringValue": "a"}}}),
        (uri, {"runtimeValue": {"runtimeParameter": "source"}}),
        (model, {"instanceSchema": "title: Mine"}),
    )
    template = read_template(spec)
    sources = tasks(template, "comp-loop")["train"].parameters
    assert [sources[key].source.value for key in ("lr", "epochs", "text")] == [1.0, 7, "a"]
    assert template.components["comp-train"].input_parameters["epochs"].default == 3
    assert tasks(template)["import"].parameters["uri"].source == ir.ComponentInput("source")
    artifacts = template.components["comp-import"].output_artifacts
    assert artifacts["artifact"].type == ir.ArtifactType(instance_schema="title: Mine")


def test_compiler_inputs_need_no_declaration() -> None:
    placeholder = constant("{{$.inputs.parameters['pipelinechannel--x']}}")
    names = ("pipelinechannel--x", "epochs", "cpu_limit", "base_image")
    assert faults(changed(*((f"{BOUND}/{name}", placeholder) for name in names))) == {}


def test_artifact_loop_splits_a_list() -> None:
    second = "root/dag/tasks/second"
    iterator = {"items": {"inputArtifact": "models"}, "itemInput": "base"}
    models = SPEC["components"]["comp-report"]["inputDefinitions"]["artifacts"]["models"]
    source = {"componentInputParameter": "source"}
    spec = changed(
        ("components/comp-loop/inputDefinitions/artifacts/models", models),
        (second, {"componentRef": {"name": "comp-loop"}, "artifactIterator": iterator}),
        (f"{second}/inputs/artifacts/models", artifact("loop", "model")),
        (f"{second}/inputs/parameters/item", constant({})),
        (f"{second}/inputs/parameters/pipelinechannel--source", source),
    )
    assert faults(spec) == {}
    assert tasks(read_template(spec))["second"].iterator == ir.Iterator("models", "base", True)


@pytest.mark.parametrize(
    ("spec", "field", "text"),
    [
        ({}, "t.schema_version", "is missing"),
        ({"schemaVersion": 2}, "t.schema_version", "version 2 is not supported"),
        ({"schemaVersion": "2.2.0"}, "t.schema_version", '"2.2.0" is not supported'),
        ({"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow"}, "t", "Argo workflow"),
        ({"name": "c", "implementation": {"container": {}}}, "t", "definition of a component"),
        ({"pipelineSpec": SPEC}, "t", "PipelineJob"),
    ],
)
def test_other_formats_are_refused(spec: dict[str, Any], field: str, text: str) -> None:
    ((at, description),) = faults(spec).items()
    assert at == field
    assert text in description


@pytest.mark.parametrize(
    ("path", "value", "field", "text"),
    [
        ("rot", {}, "", "Did you mean root?"),
        (f"{TRAIN}/caching_option", {}, "", "Did you mean caching_options?"),
        (f"{COMPONENT}/singlePlatformSpecs", [{"platform": "k"}], "", "kfp.kubernetes"),
        (EXECUTOR, {"resolver": {"filter": "x"}}, ".resolver", "dsl.importer"),
        (EXECUTOR, {"customJob": {"a": 1}}, ".custom_job", "CustomTrainingJobOp"),
        (f"{CONTAINER}/lifecycle/preCacheCheck", {"args": ["x"]}, "", "Hooks"),
        (f"{IMPORTER}/typeSchema", {"schemaUri": "gs://b"}, ".schema_uri", "schema_title"),
        (INPUT, {"parameterType": "NUMBER"}, ".parameter_type", "does not exist"),
        (INPUT, {}, ".parameter_type", "type is missing"),
        (INPUT, {"type": "INTEGER"}, ".type", "does not exist"),
        (f"{COMPONENT}/inputDefinitions/parameters/epochs/defaultValue", "x", "", "INTEGER"),
        (f"{COMPONENT}/executorLabel", "exec-trein", "", "Did you mean exec-train?"),
        (f"{TRAIN}/triggerPolicy/strategy", "ALWAYS", "", "does not exist"),
        (f"{TRAIN}/retryPolicy/maxRetryCount", -1, "", "non-negative"),
        (f"{TRAIN}/retryPolicy/backoffDuration", "99999999s", "", "a duration such as 60s"),
        (f"{LOOP}/iteratorPolicy/parallelismLimit", 1.5, "", "integer"),
        (f"{LOOP}/parameterIterator/items/raw", "{}", "", "LIST"),
        (f"{LOOP}/parameterIterator/items/raw", "[1]", "", "STRUCT"),
        (f"{CONTAINER}/image", "", "", "no image"),
        (f"{CONTAINER}/env", [{"value": "x"}], "[0].name", "no name"),
        (f"{CONTAINER}/args", [1], "[0]", "Put it in quotes"),
        (f"{CONTAINER}/args", "x", "", "not a list"),
        (f"{CONTAINER}/resources/cpuLimit", float("nan"), "", "number"),
        (f"{TRAIN}/cachingOptions/enableCache", "yes", "", "true or false"),
        (f"{TRAIN}/inputs", [], "", "an object"),
        (f"{BOUND}/mode", {}, "", "Set exactly one of"),
        (f"{BOUND}/mode", constant("m"), ".runtime_value", '"fast"'),
        (f"{BOUND}/epochs", constant(1.5), ".runtime_value", "INTEGER"),
        (f"{BOUND}/mode/runtimeValue", {"constantValue": {"x": 1}}, ".constant_value", "intValue"),
        ("pipeline_info", {}, "", "set twice"),
        ("pipelineInfo/name", "x" * 129, "", "129 characters"),
        ("components", {"a/b": {}}, "", "slash"),
        ("components", {"x" * 256: {}}, "", "255 characters"),
        (f"{TRAIN}/componentRef/name", "comp-trein", "", "Did you mean comp-train?"),
        (f"{TRAIN}/dependentTasks", ["import"], "[0]", "Set one of train."),
        (f"{BOUND}/lr", ..., "", "requires this input"),
        (f"{LOOP}/inputs/artifacts/base", ..., "", "requires this input"),
        (f"{LOOP}/parameterIterator/itemInput", "other", "", "Set one of item and"),
        (f"{LOOP}/parameterIterator/items", {"inputParameter": "x"}, ".input_parameter", "Set one"),
        (f"{BOUND}/rate", output("none", "x"), "", "Set one of lr,"),
        (f"{TRAIN}/inputs/artifacts/base/componentInputArtifact", "b", "", "Set one of base."),
        (f"{BOUND}/mode", {"componentInputParameter": "b"}, INNER, "Set one of item"),
        (LOSSES, output("lop", "loss"), f"{OUTPUT}.producer_task", "Did you mean loop?"),
        (LOSSES, output("loop", "los"), f"{OUTPUT}.output_parameter_key", "Did you mean loss?"),
        (MODELS, artifact("loop", "x"), ".task_output_artifact.output_artifact_key", "model"),
        (MODELS, artifact("import", "artifact"), "", "a single artifact, but the input is a list"),
        (f"{LOOP}/inputs/artifacts/base", artifact("loop", "model"), "", "the input is a single"),
        (STATUS, output("loop", "loss"), "", "only the status of a task"),
        (f"{STATUS}/taskFinalStatus/producerTask", "x", "", "Set one of import, loop and report"),
        (LOSSES, {"taskFinalStatus": {"producerTask": "loop"}}, "", "the type LIST"),
        (f"{LOOP}/triggerPolicy/condition", "1 +", "", "character"),
        (f"{LOOP}/triggerPolicy/condition", "inputs.artifacts['x']", "", "Set one of base."),
        (f"{BOUND}/lr/parameterExpressionSelector", "inputs.x", "", '"inputs" does not exist'),
        (f"{OUTPUTS}/parameters/other", LOSS, "", "Set one of loss."),
        (f"{OUTPUTS}/parameters/loss", ..., "", "No task computes"),
        (
            f"{OUTPUTS}/parameters/loss",
            ONE_OF,
            ".value_from_oneof.parameter_selectors[0].producer_subtask",
            "one of train",
        ),
        (f"{OUTPUTS}/parameters/loss/valueFromParameter/producerSubtask", "x", "", "one of train"),
        ("components/root", {"executorLabel": "exec-report"}, "", "cannot have the name root"),
        ("root", ..., "", "content is missing"),
        (INPUT, {"parameterType": "TASK_FINAL_STATUS"}, "", "optional"),
        (f"{IMPORT}/outputDefinitions", {}, ".artifacts", "one artifact"),
        (f"{BOUND}/i-subvar-a", {"componentInputParameter": "loop-item"}, INNER, "13273"),
    ],
)
def test_wrong_fields_and_references_are_refused_at_their_path(
    path: str, value: Any, field: str, text: str
) -> None:
    errors = faults(changed((path, value)))
    assert text in errors[f"t.{snake_case(path).replace('/', '.')}{field}"]


@pytest.mark.parametrize(
    ("path", "value", "field", "text"),
    [
        (f"{REPORT}/triggerPolicy", {}, f"{STATUS}/task_final_status", "exit task"),
        (f"{SELECTED}/artifactSelectors", [], SELECTED, "No task"),
        (f"{IMPORT}/inputDefinitions/parameters", {}, f"{IMPORT}/executor_label", "Remove"),
        (f"{TASKS}/import/dependentTasks", ["report"], TASKS, "import -> loop -> report"),
        (f"{REPORT}/dependentTasks", ["report"], TASKS, "report -> report"),
        (f"{TRAIN}/componentRef/name", "comp-loop", "components", "comp-loop in comp-loop"),
    ],
)
def test_consequences_of_a_change_are_refused_at_their_path(
    path: str, value: Any, field: str, text: str
) -> None:
    assert text in faults(changed((path, value)))[f"t.{field.replace('/', '.')}"]


def test_all_errors_of_a_template_are_reported_together() -> None:
    spec = changed(
        ("rot", 1), (f"{CONTAINER}/image", ""), (f"{COMPONENT}/dag", {}), (f"{LOOP}/dependentTasks", ["none"])
    )
    errors = faults(spec)
    assert [*errors] == [
        "t.rot",
        "t.deployment_spec.executors.exec-train.container.image",
        "t.components.comp-train",
        "t.root.dag.tasks.loop.dependent_tasks[0]",
    ]
    assert "dag and executor_label are set" in errors["t.components.comp-train"]


def test_all_texts_with_placeholders_are_checked() -> None:
    paths = [
        f"{CONTAINER}/image",
        f"{CONTAINER}/resources/resourceCpuLimit",
        f"{CONTAINER}/resources/accelerator/resourceType",
        f"{IMPORTER}/metadata/k",
        f"{TRAIN}/cachingOptions/cacheKey",
        f"{BOUND}/mode/runtimeValue/constant",
        f"{COMPONENT}/inputDefinitions/parameters/mode/defaultValue",
    ]
    wrong = "{{$.unknown}}"
    nested = [(f"{CONTAINER}/args", ["a", wrong]), (f"{BOUND}/x", constant({"k": [wrong]}))]
    errors = faults(changed(*((path, wrong) for path in paths), *nested))
    expected = [snake_case(path).replace("/", ".") for path in paths]
    expected += ["deployment_spec.executors.exec-train.container.args[1]"]
    expected += [f"{BOUND}/x/runtime_value/constant/k[0]".replace("/", ".")]
    assert {f"t.{field}" for field in expected} <= errors.keys()


def test_large_and_deep_templates_are_refused() -> None:
    many = {f"field{index}": 1 for index in range(5_000)}
    assert len(faults(changed(("root", many)))) == MAX_FAULTS
    assert faults({**SPEC, "root": {"inputDefinitions": {"parameters": {"x": {"literals": DEEP}}}}})
    assert faults(chain(MAX_DEPTH - 1)) == {}
    assert f"{MAX_DEPTH + 1} levels" in faults(chain(MAX_DEPTH))["t.root"]
    assert "t.root" in faults(chain(3_000, width=3))


def test_number_of_tasks_is_limited() -> None:
    names = [f"t{index}" for index in range(MAX_TASKS + 1)]
    wide = {name: {"componentRef": {"name": "comp-x"}} for name in names}
    spec = changed(("components", {"comp-x": {"executorLabel": "exec-report"}}))
    spec["root"] = {"dag": {"tasks": wide}}
    assert f"more than {MAX_TASKS} tasks" in faults(spec)["t.root"]
    del wide["t0"]
    assert faults(spec) == {}
    # Components count for each of their uses.
    assert f"more than {MAX_TASKS} tasks" in faults(chain(8, width=3))["t.root"]
