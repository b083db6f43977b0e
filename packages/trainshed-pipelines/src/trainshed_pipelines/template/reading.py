"""Reads a compiled pipeline (JSON) into a Template, and reports all errors with their paths.

`template.messages` checks fields and types, and `template.dags` reads the DAGs and checks their references.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET, UnsetType, convert
from msgspec.structs import replace

from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.requests import Section
from trainshed_pipelines.template import structures as ir
from trainshed_pipelines.template import values
from trainshed_pipelines.template.dags import DagReader, constant_or_input, sort, typed
from trainshed_pipelines.template.messages import TemplateFaults, conform, entries, is_known, only, reference

COMPILE: Final = "Compile the pipeline with kfp 2: kfp dsl compile --py pipeline.py --output pipeline.yaml"
ROOT: Final = "root"
"""The key of the pipeline's own component in `Template.components`."""
MAX_TASKS: Final = 2_000
"""Maximum number of tasks of a pipeline. A component that several tasks use counts for each of them. A loop
counts once."""
MAX_DEPTH: Final = 20
"""Maximum depth of nested DAGs, including the pipeline itself."""
MAX_NAME: Final = 128
"""Maximum length of the name of a pipeline. `messages.MAX_KEY` limits the other names."""

_VERSION: Final = re.compile(r"2\.[01]\.\d{1,4}")
_TYPES: Final = {kind.value: kind for kind in ir.ParameterType}
#: The deprecated names of types: `PrimitiveType` in the proto.
_OLD_TYPES: Final = {
    "INT": ir.ParameterType.INTEGER,
    "DOUBLE": ir.ParameterType.DOUBLE,
    "STRING": ir.ParameterType.STRING,
}
#: In place of an implementation that has errors, or that is not read yet.
_NO_PROGRAM: Final = ir.Container(image="")


def read_template(spec: Mapping[str, Any], path: str = "pipeline_spec") -> ir.Template:
    """Return the compiled pipeline from the JSON of a `PipelineSpec`. `path`: the path of `spec` in the
    request. Raises InvalidRequest with all violations, up to `messages.MAX_FAULTS`."""
    _check_format(spec, path)
    faults = TemplateFaults()
    template = _template(Section(conform(spec, "PipelineSpec", path, faults), path, faults))
    faults.refuse()
    return template


def check_parameters(
    template: ir.Template,
    parameter_values: Mapping[str, ir.Json],
    path: str = "runtime_config.parameter_values",
) -> dict[str, ir.Json]:
    """Return the values of the pipeline's parameters, in the form of their types and with their defaults.

    An optional parameter without a default is absent. A null counts as "not given". Raises InvalidRequest
    with a violation for each unknown name, missing parameter and wrong value.
    """
    faults, known = TemplateFaults(), template.root.input_parameters
    for name in parameter_values:
        is_known(Section(parameter_values, path, faults), name, "parameter", name, known)
    parameters: dict[str, ir.Json] = {}
    for name, parameter in known.items():
        value = parameter_values.get(name)
        if value is not None:
            try:
                parameters[name] = values.coerce(value, parameter.type)
                values.check_literals(parameters[name], parameter.literals)
            except ValueError as error:
                faults.add(f"{path}.{name}", str(error))
        elif parameter.default is not UNSET:
            parameters[name] = parameter.default
        elif not parameter.is_optional:
            text = f"The parameter is missing. Set a value of the type {parameter.type.value}."
            faults.add(f"{path}.{name}", text)
    faults.refuse()
    return parameters


def _check_format(spec: Mapping[str, Any], path: str) -> None:
    """Raise InvalidRequest for another format, or for another version of the format."""
    field = path
    version = spec.get("schemaVersion", spec.get("schema_version"))
    if spec.get("kind") == "Workflow":
        problem = "This is an Argo workflow, the output of the KFP 1 compiler."
    elif "implementation" in spec:
        problem = "This is the definition of a component, not a compiled pipeline."
    elif "pipelineSpec" in spec or "pipeline_spec" in spec:
        problem = "This is a PipelineJob. Set only the contents of its field pipelineSpec."
    elif not isinstance(version, str) or not _VERSION.fullmatch(version):
        field = f"{path}.schema_version"
        wrong = f"{values.show(version)} is not supported" if version else "is missing"
        problem = f"The version {wrong}. Supported are 2.0 and 2.1."
    else:
        return
    raise InvalidRequest((Violation(field, f"{problem} {COMPILE}"),))


def _template(spec: Section) -> ir.Template:
    info, sections = spec.section("pipeline_info"), dict(entries(spec, "components"))
    if not 0 < (length := len(info.text("name"))) <= MAX_NAME:
        text = f"The name has {length} characters. Set a name of 1 to {MAX_NAME} characters."
        info.fault("name", text)
    if ROOT in sections:
        sections[ROOT].fault("", f"A component cannot have the name {ROOT}. Rename it.")
    sections[ROOT] = spec.section(ROOT)
    deployment = spec.section("deployment_spec")
    executors = {label: _executor(part) for label, part in entries(deployment, "executors")}
    # DAGs refer to the inputs and outputs of components, so these come first.
    components = {name: _interface(name, part) for name, part in sections.items()}
    for name, part in sections.items():
        implementation = _implementation(part, components[name], components, executors)
        components[name] = replace(components[name], implementation=implementation)
    for key, parameter in components[ROOT].input_parameters.items():
        if parameter.type is ir.ParameterType.FINAL_STATUS and not parameter.is_optional:
            text = "A pipeline cannot receive the status of a task. Make the input optional."
            spec.faults.add(f"{spec.path}.{ROOT}.input_definitions.parameters.{key}", text)
    _check_sizes(components, spec)
    return ir.Template(
        name=info.text("name"),
        display_name=info.text("display_name"),
        default_root=spec.text("default_pipeline_root"),
        root=components[ROOT],
        components=components,
    )


def _interface(name: str, section: Section) -> ir.Component:
    """Return a component without its implementation."""
    inputs, outputs = section.section("input_definitions"), section.section("output_definitions")
    return ir.Component(
        name=name,
        input_parameters={key: _parameter(part) for key, part in entries(inputs, "parameters")},
        input_artifacts=convert(inputs.section("artifacts").values, dict[str, ir.InputArtifact]),
        output_parameters={key: _parameter_type(part) for key, part in entries(outputs, "parameters")},
        output_artifacts={
            key: ir.OutputArtifact(
                convert(part.section("artifact_type").values, ir.ArtifactType),
                is_list=part.flag("is_artifact_list"),
                metadata=_metadata(part),
            )
            for key, part in entries(outputs, "artifacts")
        },
        implementation=_NO_PROGRAM,
    )


def _parameter(section: Section) -> ir.InputParameter:
    kind = _parameter_type(section)
    default: ir.Json | UnsetType = UNSET
    if (value := section.values.get("default_value")) is not None:
        default = typed(section, "default_value", value, kind)
    literals = section.values.get("literals", ())
    return ir.InputParameter(
        kind,
        default,
        # The default null has the same effect as an optional input.
        is_optional=section.flag("is_optional") or section.has("default_value"),
        literals=tuple(typed(section, "literals", literal, kind) for literal in literals),
    )


def _parameter_type(section: Section) -> ir.ParameterType:
    # The deprecated field has other names of types.
    is_old = section.has("type") and not section.has("parameter_type")
    field, known = ("type", _OLD_TYPES) if is_old else ("parameter_type", _TYPES)
    text = section.enum(field)
    if not text:
        section.fault(field, f"The type is missing. Set one of {', '.join(known)}.")
    elif is_known(section, field, "type", text, known):
        return known[text]
    return ir.ParameterType.STRING


def _metadata(section: Section) -> dict[str, ir.Json]:
    """Return the metadata of an artifact, including its deprecated properties."""
    metadata: dict[str, ir.Json] = {}
    for name in ("properties", "custom_properties"):
        for key, part in entries(section, name):
            match constant_or_input(part):
                case ir.Constant(value):
                    metadata[key] = value
                case ir.ComponentInput(parameter):
                    metadata[key] = f"{{{{$.inputs.parameters['{parameter}']}}}}"
    return metadata | section.values.get("metadata", {})


def _executor(section: Section) -> ir.Container | ir.Importer:
    match only(section, "container", "importer", "resolver", "custom_job"):
        case "container" as name:
            return _container(section.section(name))
        case "importer" as name:
            part = section.section(name)
            return ir.Importer(
                uri=constant_or_input(part.section("artifact_uri")),
                type=convert(part.section("type_schema").values, ir.ArtifactType),
                metadata=_metadata(part),
                reimport=part.flag("reimport"),
            )
        case _:  # `conform` has reported resolvers and custom jobs.
            return _NO_PROGRAM


def _container(section: Section) -> ir.Container:
    if not section.text("image"):
        section.fault("image", "The container has no image. Set one, such as python:3.11.")
    for part in section.sections("env"):
        if not part.text("name"):
            part.fault("name", "The environment variable has no name. Set one, such as MODE.")
    resources = section.section("resources")
    accelerator = resources.section("accelerator")
    amounts: dict[str, str] = {}
    # The deprecated fields are numbers: of cores, or of GB.
    for name in ("cpu_limit", "cpu_request", "memory_limit", "memory_request"):
        old, unit = resources.number(name), "G" if name.startswith("memory") else ""
        text = f"{values.to_text(old)}{unit}" if old else ""
        amounts[name] = resources.text(f"resource_{name}") or text
    count = accelerator.integer("count")
    return ir.Container(
        image=section.text("image"),
        command=section.texts("command"),
        args=section.texts("args"),
        env=tuple((part.text("name"), part.text("value")) for part in section.sections("env")),
        resources=ir.Resources(
            **amounts,
            accelerator_type=accelerator.text("resource_type") or accelerator.text("type"),
            accelerator_count=accelerator.text("resource_count") or (str(count) if count else ""),
        ),
    )


def _implementation(
    section: Section,
    component: ir.Component,
    components: Mapping[str, ir.Component],
    executors: Mapping[str, ir.Container | ir.Importer],
) -> ir.Dag | ir.Container | ir.Importer:
    name = only(section, "dag", "executor_label")
    if name == "dag":
        return DagReader(components, component, section.section(name)).dag()
    label = reference(section, name, "executor", executors) if name else ""
    executor = executors.get(label, _NO_PROGRAM)
    if isinstance(executor, ir.Importer):
        if isinstance(executor.uri, ir.ComponentInput):
            inputs = component.input_parameters
            is_known(section, name, "input parameter", executor.uri.name, inputs)
        if len(component.output_artifacts) != 1:
            text = "An importer creates one artifact. Declare exactly one output artifact."
            section.fault("output_definitions.artifacts", text)
    return executor


def _check_sizes(components: Mapping[str, ir.Component], spec: Section) -> None:
    """Check that no component contains itself, and the limits of the whole pipeline."""
    inner: dict[str, list[str]] = {}
    for name, component in components.items():
        dag = component.implementation
        tasks = dag.tasks.values() if isinstance(dag, ir.Dag) else ()
        inner[name] = [task.component for task in tasks if task.component in components]
    depths: dict[str, int] = {}
    counts = dict.fromkeys(components, 0)
    for name in sort(inner, spec, "components", "A component contains itself", " in "):
        is_dag = isinstance(components[name].implementation, ir.Dag)
        depths[name] = is_dag + max((depths[key] for key in inner[name]), default=0)
        counts[name] = sum(1 + counts[key] for key in inner[name])
    if (depth := depths.get(ROOT, 0)) > MAX_DEPTH:
        text = f"The pipeline has {depth} levels of nested tasks. The limit is {MAX_DEPTH}."
        spec.fault(ROOT, f"{text} Move inner tasks to an outer level.")
    if max(counts.values()) > MAX_TASKS:
        text = f"The pipeline has more than {MAX_TASKS} tasks, which is the limit."
        spec.fault(ROOT, f"{text} Use a loop (dsl.ParallelFor), or split the pipeline.")
