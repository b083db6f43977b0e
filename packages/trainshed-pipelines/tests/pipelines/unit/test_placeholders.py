"""Placeholders in constants, default values and the texts of executors."""

import json

import pytest
from msgspec.structs import replace

from tests.pipelines.unit import pipelines_of
from trainshed_pipelines.template.placeholders import MAX_RESULT, Context, faults, local_path
from trainshed_pipelines.template.structures import Json

MODEL = {
    "name": "projects/1/locations/r/metadataStores/default/artifacts/7",
    "type": {"schemaTitle": "system.Model", "schemaVersion": "0.0.1"},
    "uri": "gs://bucket/dir/model",
    "metadata": {"framework": "jax", "layers": 3, "tags": ["a"]},
}
INPUT: dict[str, Json] = {
    "inputs": {
        "parameterValues": {"text": 'say "hi"'},
        "artifacts": {"model": {"artifacts": [MODEL]}, "empty": {"artifacts": []}},
    },
    "outputs": {
        "parameters": {"count": {"outputFile": "/gcs/b/t/count"}},
        "artifacts": {"plot": {"artifacts": [{"name": "plot", "uri": "gs://b/t/plot"}]}},
        "outputFile": "/gcs/b/t/executor_output.json",
    },
}
FACTS = replace(pipelines_of.FACTS, pipeline_task_name="train")
PARAMETERS: dict[str, Json] = {
    "text": 'say "hi"',
    "number": 3,
    "rate": 0.5,
    "flag": True,
    "items": ["a", 1],
    "fields": {"k": "v"},
    "nothing": None,
    "injection": "{{$.pipeline_root}} {{$}}",
}
CONSTANT = replace(FACTS, parameters=PARAMETERS)
EXECUTOR = replace(CONSTANT, executor_input=INPUT)


def parameter(name: str) -> str:
    return f"{{{{$.inputs.parameters['{name}']}}}}"


@pytest.mark.parametrize("name", [name for name in Context.__struct_fields__ if name.startswith("pipeline_")])
def test_each_fact_has_a_placeholder(name: str) -> None:
    assert FACTS.resolve_text(f"-{{{{$.{name}}}}}-") == f"-{getattr(FACTS, name)}-"
    assert not list(faults(f"{{{{$.{name}}}}}"))


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("{{$.outputs.parameters['count'].output_file}}", "/gcs/b/t/count"),
        ("{{$.outputs.output_file}}", "/gcs/b/t/executor_output.json"),
        ("{{$.outputMetadataUri}}", "/gcs/b/t/executor_output.json"),
        ("{{$.inputs.artifacts['model'].uri}}", "gs://bucket/dir/model"),
        ("{{$.inputs.artifacts['model'].path}}", "/gcs/bucket/dir/model"),
        ('{{$.inputs.artifacts["model"].name}}', MODEL["name"]),
        ("{{$.inputs.artifacts['model'].metadata['framework']}}", "jax"),
        ("{{$.inputs.artifacts[''model''].metadata[''layers'']}}", "3"),
        ("{{$.inputs.artifacts['model'].properties['tags']}}", '["a"]'),
        ("{{$.outputs.artifacts['plot'].path}}/x", "/gcs/b/t/plot/x"),
        ("{{$.outputs.artifacts['plot'].metadata}}", ""),
        ("{{$.inputs.artifacts['empty'].uri}}", ""),
        ("{{$.inputs.artifacts['unknown'].metadata['k']}}", ""),
        (f"n={parameter('number')} {parameter('rate')} {parameter('flag')}", "n=3 0.5 true"),
        (f"{parameter('items')}{parameter('nothing')}{parameter('unknown')}", '["a", 1]'),
        ("{{$.inputs.parameters['text'].json_escape[0]}}", r"say \"hi\""),
        ("{{$.inputs.parameters['text'].json_escape[1]}}", r"say \\\"hi\\\""),
        ("{{$.inputs.parameters['items'].json_escape[0]}}", r"[\"a\", 1]"),
    ],
)
def test_executor_placeholder_has_its_value(text: str, result: str) -> None:
    assert EXECUTOR.resolve_text(text) == result
    assert not list(faults(text))


def test_executor_input_is_json_at_each_level_of_escaping() -> None:
    def resolved(text: str) -> Json:
        return json.loads(EXECUTOR.resolve_text(text))

    assert resolved("{{$}}") == INPUT
    assert json.loads(resolved('["{{$.json_escape[1]}}"]')[0]) == INPUT
    nested = resolved('["{{$.json_escape[2]}}"]')[0]
    assert json.loads(json.loads(f'"{nested}"')) == INPUT
    assert resolved("{{$.inputs.artifacts['model']}}") == {"artifacts": [MODEL]}
    assert resolved("{{$.inputs.artifacts['model'].metadata}}") == MODEL["metadata"]


@pytest.mark.parametrize(
    "text",
    [
        "{{$.inputs.artifacts['model'].metadata['missing']}}",
        "{{$.unknown}}",
        "{{$.inputs.parameters.text}}",
        "{{$.inputs.parameters['text'].json_escape[9]}}",
        "{{ $.pipeline_root }} {{workflow.name}} {{$x}} {{$.pipeline_root}",
        "plain } text {{",
    ],
)
def test_unknown_text_remains_unchanged(text: str) -> None:
    assert EXECUTOR.resolve_text(text) == text


def test_values_are_not_resolved_again() -> None:
    text = f"{parameter('injection')} {{{{$.pipeline_task_name}}}}"
    assert EXECUTOR.resolve_text(text) == "{{$.pipeline_root}} {{$}} train"
    args = EXECUTOR.resolve_args([json.dumps({"Concat": [text]})])
    assert args == ("{{$.pipeline_root}} {{$}} train",)


def test_placeholders_without_a_source_remain_for_a_later_step() -> None:
    value = ["{{$.pipeline_google_cloud_project_id}}", "{{$}}", parameter("text")]
    assert FACTS.resolve_value(value) == ["p", "{{$}}", parameter("text")]
    assert CONSTANT.resolve_value(value) == ["p", "{{$}}", 'say "hi"']
    assert CONSTANT.resolve_text("{{$.outputs.output_file}}") == "{{$.outputs.output_file}}"


@pytest.mark.parametrize("name", PARAMETERS)
def test_constant_of_one_placeholder_keeps_the_type(name: str) -> None:
    for value in (
        CONSTANT.resolve_value(parameter(name)),
        CONSTANT.resolve_value([{"k": parameter(name)}])[0]["k"],
    ):
        assert (value, type(value)) == (PARAMETERS[name], type(PARAMETERS[name]))
    assert isinstance(CONSTANT.resolve_value(f" {parameter(name)}"), str)
    assert CONSTANT.resolve_value(parameter("unknown")) is None


def test_structs_are_resolved_with_their_keys_and_other_values_are_kept() -> None:
    value = {f"k-{parameter('number')}": [1, None, {"a": f"<{parameter('fields')}>"}]}
    assert CONSTANT.resolve_value(value) == {"k-3": [1, None, {"a": '<{"k": "v"}>'}]}


def test_worker_pools_of_training_components_have_one_level_of_escaping_less() -> None:
    pools = replace(EXECUTOR, is_inside_json=True)
    text = "{{$.inputs.parameters['text'].json_escape[0]}}"
    args = ["{{$.json_escape[1]}}", text, parameter("number")]
    executor_input, text, number = pools.resolve_value({"args": args})["args"]
    assert (json.loads(executor_input), text, number) == (INPUT, 'say "hi"', "3")


def if_present(name: str, then: Json, *otherwise: Json) -> Json:
    structure = {"InputName": name, "Then": then}
    return {"IfPresent": {**structure, "Else": otherwise[0]} if otherwise else structure}


@pytest.mark.parametrize(
    ("structure", "result"),
    [
        ({"Concat": ["--text=", parameter("text"), "/", 1]}, ('--text=say "hi"/1',)),
        ({"Concat": []}, ("",)),
        (if_present("model", "{{$.inputs.artifacts['model'].path}}"), ("/gcs/bucket/dir/model",)),
        (if_present("empty", "a"), ()),
        (if_present("nothing", "a", ["b", "c"]), ("b", "c")),
        (if_present("unknown", "a", if_present("unknown", "b", "c")), ("c",)),
        ({"Concat": [if_present("unknown", "x"), if_present("text", ["a", "b"])]}, ("ab",)),
        (if_present("text", [{"Concat": ["x"]}, if_present("flag", ["1", "2"])]), ("x", "1", "2")),
    ],
)
def test_structures_become_arguments(structure: Json, result: tuple[str, ...]) -> None:
    text = json.dumps(structure)
    assert EXECUTOR.resolve_args(["first", text, "last"]) == ("first", *result, "last")
    assert EXECUTOR.resolve_args([f" {json.dumps(structure, indent=1)}"]) == result
    assert not list(faults(text))


@pytest.mark.parametrize("arg", ['{"Concat": [}', '{"Concatenate": []}', '{"a": {"Concat": []}}'])
def test_json_that_is_not_a_structure_is_one_argument(arg: str) -> None:
    assert EXECUTOR.resolve_args([arg]) == (arg,)
    assert not list(faults(arg))


@pytest.mark.parametrize(
    "text",
    [
        '{"Concat": "text"}',
        '{"Concat": [{"Concatenate": []}]}',
        '{"Concat": [], "IfPresent": {}}',
        '{"IfPresent": {"Then": "x"}}',
        '{"IfPresent": {"InputName": "text"}}',
        '{"IfPresent": {"InputName": "text", "Then": "x", "Otherwise": "y"}}',
    ],
)
def test_malformed_structure_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not valid"):
        EXECUTOR.resolve_args([text])
    assert len(list(faults(text))) == 1


def test_both_branches_of_a_structure_are_checked() -> None:
    for wrong in ("{{$.unknown}}", {"Concat": 1}):
        assert list(faults(json.dumps(if_present("x", wrong, "y"))))
        assert list(faults(json.dumps(if_present("x", if_present("y", "z", wrong)))))


def test_results_and_structures_have_limits() -> None:
    large = replace(CONSTANT, parameters={"x": "x" * (1 << 20)})
    assert len(large.resolve_text(parameter("x") * 8)) == MAX_RESULT
    nine = [parameter("x")] * 9
    for resolve in (
        lambda: large.resolve_text("".join(nine)),
        lambda: large.resolve_value([f"{text}-" for text in nine]),
        lambda: large.resolve_args(nine),
        lambda: large.resolve_args([json.dumps({"Concat": nine})]),
    ):
        with pytest.raises(ValueError, match="more than 8388608 characters"):
            resolve()
    assert list(faults('{"Concat": [' * 900 + '"{{$.unknown}}"' + "]}" * 900))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("{{$.pipeline_job_uid}}", " Did you mean {{$.pipeline_job_uuid}}?"),
        ("{{$.inputs.parameter['x']}}", " Did you mean {{$.inputs.parameters['NAME']}}?"),
        ("{{$.scheduledTime.strftime('%Y')}}", ""),
        ("{{$.workspace_path}}", ""),
    ],
)
def test_unknown_placeholder_is_a_fault_with_the_nearest_placeholder(name: str, near: str) -> None:
    fault = f"The placeholder {name} does not exist.{near}"
    assert list(faults(f"a {name} b")) == [fault]
    assert list(faults(json.dumps({"Concat": ["x", name]}))) == [fault]


def test_only_gcs_uris_have_local_paths() -> None:
    assert local_path("https://example.com/gs://x") == "https://example.com/gs://x"
