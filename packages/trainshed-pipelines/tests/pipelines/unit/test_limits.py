"""Limits of runs, and values that a hostile template or program creates."""

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.pipelines.unit.pipelines_of import FACTS, LIST, Service, component, task, template
from trainshed.api.calls.services import Services
from trainshed.core.errors import InvalidRequest
from trainshed_pipelines.runs import bindings, machine, programs
from trainshed_pipelines.runs.records import ROOT, TaskState, Values
from trainshed_pipelines.runs.service import parse
from trainshed_pipelines.template import placeholders
from trainshed_pipelines.template.dags import MAX_RETRIES
from trainshed_pipelines.template.structures import (
    ArtifactType,
    Component,
    Container,
    OutputArtifact,
    ParameterType,
)
from trainshed_pipelines.template.values import MAX_DEPTH, coerce

TEXT = {"parameterType": "STRING"}
STEP = component()


def loop(name: str, inner: str, items: str, **parameters: Any) -> dict[str, Any]:
    source = {"raw": items} if items.startswith("[") else {"inputParameter": items}
    return task(name, inner, parameterIterator_={"items": source, "itemInput": "x"}, **parameters)


def error_of(service: Service) -> str:
    error = service.run().error
    assert error is not None
    return error.message


def test_iterations_of_all_loops_of_a_run_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MAX_RUN_TASKS", 20)
    inner = component({"x": TEXT}, dag={"tasks": {"b": loop("b", "step", '["1", "2", "3", "4"]')}})
    step = component({"x": TEXT})
    nested = template(
        {"a": loop("a", "inner", str(list("abcdefgh")).replace("'", '"'))}, {"inner": inner, "step": step}
    )
    service = Service(nested)
    assert "more than 20 tasks" in error_of(service)
    assert len(service.tree) <= 20


def test_inputs_of_all_tasks_of_a_run_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MAX_RUN_SIZE", 5_000)
    step = component({"x": TEXT})
    many = template(
        {f"t{i}": task(f"t{i}", "step", x="=p") for i in range(20)}, {"step": step}, inputs={"p": TEXT}
    )
    service = Service(many, inputs=Values({"p": "v" * 1_000}))
    assert "more than 5,000 bytes" in error_of(service)
    assert service.tree.size <= 5_000
    assert "SUCCEEDED" in service.states().values()


def test_iterations_do_not_store_all_items_of_their_loop() -> None:
    inner = component({"x": TEXT, "p": LIST}, dag={"tasks": {"s": task("s", "step")}})
    items = ["v" * 100] * 50
    looping = template(
        {"a": loop("a", "inner", "p", p="=p")}, {"inner": inner, "step": STEP}, inputs={"p": LIST}
    )
    service = Service(looping, inputs=Values({"p": items}))
    assert service.run().state is TaskState.SUCCEEDED
    assert service.task("a[7]").inputs.parameters == {"x": items[7]}


def test_placeholders_cannot_multiply_the_inputs_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "MAX_INPUTS", 2_000)
    keys = [f"x{i}" for i in range(10)]
    step = component(dict.fromkeys(["p", *keys], TEXT))
    tasks = {"t": task("t", "step", p="=p")}
    copy = {"runtimeValue": {"constant": "{{$.inputs.parameters['p']}}"}}
    tasks["t"]["inputs"]["parameters"] |= dict.fromkeys(keys, copy)
    service = Service(template(tasks, {"step": step}, inputs={"p": TEXT}), inputs=Values({"p": "v" * 500}))
    assert "more than 2,000 bytes" in error_of(service)
    assert service.tree[ROOT].state is TaskState.FAILED


def test_long_conditions_over_large_inputs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "MAX_CONDITION_WORK", 10_000)
    condition = "inputs.parameter_values['p'] != ''"
    waiting = task("t", "step", p="=p", triggerPolicy_={"condition": condition})
    steps = {"step": component({"p": TEXT})}
    service = Service(template({"t": waiting}, steps, inputs={"p": TEXT}), inputs=Values({"p": "v" * 500}))
    assert "too long for inputs of this size" in error_of(service)


def test_variables_of_a_program_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placeholders, "MAX_RESULT", 1_000)
    with pytest.raises(ValueError, match="more than 1000 characters"):
        FACTS.resolve_texts(["v" * 600] * 2)


def test_repeated_unknown_placeholder_is_reported_once() -> None:
    assert len(list(placeholders.faults("{{$.nope}} " * 1_000))) == 1


def test_retries_are_limited() -> None:
    policy = {"maxRetryCount": MAX_RETRIES + 1}
    with pytest.raises(InvalidRequest, match=f"at most {MAX_RETRIES} times"):
        template({"t": task("t", "step", retryPolicy_=policy)}, {"step": STEP})


@pytest.mark.parametrize("root", ["s3://b/x", "/etc", "gs://", "gs://bucket/../other"])
def test_pipeline_roots_outside_of_a_bucket_are_refused(root: str) -> None:
    spec = {
        "schemaVersion": "2.1.0",
        "pipelineInfo": {"name": "p"},
        "root": {"dag": {"tasks": {"t": task("t", "step")}}},
        "components": {"step": STEP},
        "deploymentSpec": {"executors": {"exec": {"container": {"image": "i"}}}},
    }
    explicit = {"pipelineSpec": spec, "runtimeConfig": {"gcsOutputDirectory": root}}
    by_default = {"pipelineSpec": {**spec, "defaultPipelineRoot": root}}
    for public in (explicit, by_default):
        with pytest.raises(InvalidRequest) as refusal:
            parse(public, "", lambda template: iter(()))
        fields = [violation.field for violation in refusal.value.violations]
        assert fields == ["runtime_config.gcs_output_directory"]


WRITER = Component(
    name="c",
    output_parameters={"o": ParameterType.STRING, "p": ParameterType.STRING},
    output_artifacts={"a": OutputArtifact(ArtifactType())},
    implementation=Container("i"),
)


class FakeBuckets:
    """A bucket in which a program has written hostile files."""

    def __init__(self, **files: bytes | OSError) -> None:
        self.files = files

    def open(self, uri: str) -> io.BytesIO:
        content = self.files.get(uri.rpartition("/")[2].partition(".")[0], FileNotFoundError())
        if isinstance(content, OSError):
            raise content
        return io.BytesIO(content)


def read(**files: bytes | OSError) -> Values:
    services = cast(Services, SimpleNamespace(buckets=FakeBuckets(**files), replace_spec=None))
    nothing: Any = SimpleNamespace(handlers={})
    reader: Any = programs.Programs(services, nothing, nothing, nothing)
    planned = programs.executor_input(WRITER, Values(), "gs://b/t")[1]
    return reader._read(WRITER, planned, "gs://b/t", {})


def metadata(text: bytes) -> bytes:
    return b'{"artifacts": {"a": {"artifacts": [{"metadata": {"x": %s}}]}}}' % text


@pytest.mark.parametrize(
    "output",
    [
        b"[" * 100_000,
        metadata(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)),
        metadata(rb'"\ud800"'),
        metadata(rb'{"\ud800": 1}'),
        rb'{"parameterValues": {"o": "\ud800"}}',
    ],
    ids=["deep", "deep metadata", "half character", "half character in a key", "parameter"],
)
def test_output_that_cannot_be_stored_or_shown_fails_the_task(output: bytes) -> None:
    with pytest.raises(ValueError, match=r"executor_output\.json is not valid"):
        read(executor_output=output, o=b"1", p=b"2")


def test_deepest_metadata_is_accepted() -> None:
    deep = metadata(b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1))
    assert read(executor_output=deep, o=b"1", p=b"2").parameters == {"o": "1", "p": "2"}


def test_all_output_files_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_MAX_OUTPUTS", 1_000)
    with pytest.raises(ValueError, match="more than 1,000 characters"):
        read(o=b"v" * 600, p=b"v" * 600)


def test_unreadable_output_file_fails_the_task() -> None:
    with pytest.raises(ValueError, match="Let the program write readable files"):
        read(o=PermissionError("gs://b/t/o cannot be read."))


def test_half_characters_in_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="does not match the type STRING"):
        coerce("\ud800", ParameterType.STRING)
