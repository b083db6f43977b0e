"""The input and the outputs of a task's program, as KFP's launcher defines them. Pure.

A program receives an ExecutorInput and writes an ExecutorOutput, both as JSON. It may also write each output
parameter to a file of its own. All files are in the task's directory, which programs see below `/gcs`.
"""

import json
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec import Struct, field

from trainshed_pipelines.runs.records import Artifact, Values
from trainshed_pipelines.template.placeholders import local_path
from trainshed_pipelines.template.structures import (
    ArtifactType,
    Component,
    Json,
    OutputArtifact,
    ParameterType,
)
from trainshed_pipelines.template.values import as_input, coerce, parse_output, read_value

OUTPUT_FILE = "executor_output.json"


def executor_input(
    component: Component, inputs: Values, directory: str, name_of: Callable[[str], str] = lambda key: ""
) -> tuple[dict[str, Json], Values]:
    """Return the ExecutorInput of a task, and its planned output artifacts.

    `directory` is the task's `gs://` directory. `name_of` returns the name of an output artifact in the
    metadata store. Each output has one planned artifact. This also applies to lists, because the program
    chooses their length.
    """
    planned = {
        key: (Artifact(name_of(key), output.type, f"{directory}/{key}", dict(output.metadata), key),)
        for key, output in component.output_artifacts.items()
    }
    here = local_path(directory)
    value = {
        "inputs": {
            "parameterValues": dict(_parameter_values(component, inputs)),
            "artifacts": _artifact_lists(inputs.artifacts),
        },
        "outputs": {
            "parameters": {key: {"outputFile": f"{here}/{key}"} for key in component.output_parameters},
            "artifacts": _artifact_lists(planned),
            "outputFile": f"{here}/{OUTPUT_FILE}",
        },
    }
    # Empty maps are omitted, as in the JSON form of protocol buffers.
    dense = {side: {k: v for k, v in fields.items() if v} for side, fields in value.items()}
    return dense, Values(artifacts=planned)


def read_outputs(
    component: Component, planned: Values, executor_output: Json | None, files: Mapping[str, str | None]
) -> Values:
    """Return the outputs of a program that has succeeded.

    `executor_output` is the JSON value of the program's ExecutorOutput, or None if it did not write one.
    `files` contains the texts of the files of output parameters, by key. The ExecutorOutput takes precedence.

    Raise ValueError if an output is missing or wrong, with the names of all such outputs.
    """
    try:
        written = msgspec.convert(executor_output or {}, _ExecutorOutput)
    except msgspec.ValidationError as error:
        raise ValueError(f"The file {OUTPUT_FILE} is not valid: {error}.") from None
    parameters: dict[str, Json] = {}
    artifacts: dict[str, tuple[Artifact, ...]] = {}
    problems: list[str] = []
    for key, kind in component.output_parameters.items():
        try:
            parameters[key] = _parameter(key, kind, written, files)
        except ValueError as error:
            problems.append(f"The output parameter {key!r} is wrong: {error}")
    for key, output in component.output_artifacts.items():
        try:
            artifacts[key] = _artifacts(output, planned.artifacts[key][0], written.artifacts.get(key))
        except ValueError as error:
            problems.append(f"The output artifact {key!r} is wrong: {error}")
    if problems:
        raise ValueError(" ".join(problems))
    return Values(parameters, artifacts)


class _RuntimeArtifact(Struct):
    uri: str = ""
    metadata: dict[str, Json] | None = None
    #: KFP's executor writes this name. The other name is that of the JSON form of protocol buffers.
    custom_path: str = ""
    custom_path_json: str = field(default="", name="customPath")


class _ArtifactList(Struct):
    artifacts: list[_RuntimeArtifact] = []


class _ExecutorOutput(Struct, rename="camel"):
    parameter_values: dict[str, Json] = {}
    parameters: dict[str, Json] = {}
    artifacts: dict[str, _ArtifactList] = {}


def _parameter_values(component: Component, inputs: Values) -> Iterator[tuple[str, Json]]:
    for key, value in inputs.parameters.items():
        spec = component.input_parameters.get(key)
        is_status = spec is not None and spec.type is ParameterType.FINAL_STATUS
        # Programs expect the final status as an object. The task's record contains its text.
        yield key, json.loads(value) if is_status and isinstance(value, str) else value


def _artifact_lists(artifacts: Mapping[str, tuple[Artifact, ...]]) -> dict[str, Json]:
    return {
        key: {"artifacts": [_runtime_artifact(key, artifact) for artifact in values]}
        for key, values in artifacts.items()
    }


def _runtime_artifact(key: str, artifact: Artifact) -> dict[str, Json]:
    return {
        "name": artifact.name or key,
        "type": _type_schema(artifact.type),
        "uri": artifact.uri,
        "metadata": dict(artifact.metadata),
    }


def _type_schema(kind: ArtifactType) -> dict[str, Json]:
    if kind.instance_schema:
        return {"instanceSchema": kind.instance_schema}
    return {"schemaTitle": kind.schema_title, "schemaVersion": kind.schema_version}


def _parameter(
    key: str, kind: ParameterType, written: _ExecutorOutput, files: Mapping[str, str | None]
) -> Json:
    if key in written.parameter_values:
        return coerce(written.parameter_values[key], kind)
    if key in written.parameters:
        return as_input(read_value(written.parameters[key]), kind)
    text = files.get(key)
    if text is None:
        raise ValueError(
            "The program did not write it. Return it from the function, or write it to the output's file."
        )
    return parse_output(text, kind)


def _artifacts(
    output: OutputArtifact, planned: Artifact, written: _ArtifactList | None
) -> tuple[Artifact, ...]:
    if written is None or not (written.artifacts or output.is_list):
        return (planned,)
    used = written.artifacts if output.is_list else written.artifacts[:1]
    return tuple(_merge(planned, artifact, index) for index, artifact in enumerate(used))


def _merge(planned: Artifact, written: _RuntimeArtifact, index: int) -> Artifact:
    """Return the planned artifact with the program's URI and its additional metadata. `index`: the position
    in a list of artifacts, which have different names."""
    uri = written.uri or planned.uri
    if path := written.custom_path or written.custom_path_json:
        if not path.startswith("/gcs/"):
            raise ValueError(
                f"The program has set its path to {path}, which the service does not copy. "
                f"Write to {local_path(planned.uri)}, or to another path below /gcs."
            )
        uri = "gs://" + path.removeprefix("/gcs/")
    metadata = {**planned.metadata, **(written.metadata or {})}
    name = f"{planned.name}-{index}" if planned.name and index else planned.name
    return Artifact(name, planned.type, uri, metadata, planned.display_name)
