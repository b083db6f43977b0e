"""Reads the DAGs of a template, and checks the references between tasks, components, inputs and outputs."""

from collections.abc import Collection, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Final

from msgspec import convert

from trainshed.core.requests import Section
from trainshed_pipelines.template import expressions, values
from trainshed_pipelines.template import structures as ir
from trainshed_pipelines.template.messages import entries, is_known, only, reference

#: The compiler adds these inputs to tasks, because placeholders in other inputs or in the container refer to
#: them. Components do not declare them.
_COMPILER_PREFIX: Final = "pipelinechannel--"
_COMPILER_INPUTS: Final = frozenset({"base_image", *ir.Resources.__struct_fields__})
_LEAKED_ITEM: Final = "-subvar-"
_STATUS_TYPES: Final = ("TASK_FINAL_STATUS", "STRUCT", "STRING")
_ALWAYS: Final = "ALL_UPSTREAM_TASKS_COMPLETED"
_STRATEGIES: Final = ("ALL_UPSTREAM_TASKS_SUCCEEDED", _ALWAYS)
_ITERATORS: Final = ("artifact_iterator", "parameter_iterator")
MAX_RETRIES: Final = 100
"""Maximum number of retries of a task. The record of a task contains the jobs of all attempts."""


class DagReader:
    """Reads the DAG of a component. `components`: all components, whose implementations may be missing."""

    def __init__(
        self, components: Mapping[str, ir.Component], component: ir.Component, section: Section
    ) -> None:
        self._components = components
        self._component = component
        self._section = section
        self._tasks = dict(entries(section, "tasks"))

    def dag(self) -> ir.Dag:
        outputs = self._section.section("outputs")
        dag = ir.Dag(
            tasks={name: self._task(name, part) for name, part in self._tasks.items()},
            output_parameters={
                key: self._parameter_selectors(part) for key, part in entries(outputs, "parameters")
            },
            output_artifacts={
                key: tuple(
                    self._output(selector, "artifact", "subtask")
                    for selector in part.sections("artifact_selectors")
                )
                for key, part in entries(outputs, "artifacts")
            },
        )
        upstream = {name: task.upstream for name, task in dag.tasks.items()}
        sort(upstream, self._section, "tasks", "Tasks wait for each other", " -> ")
        for kind, computed, declared in (
            ("parameter", dag.output_parameters, self._component.output_parameters),
            ("artifact", dag.output_artifacts, self._component.output_artifacts),
        ):
            for key in computed:
                is_known(outputs, f"{kind}s.{key}", f"output {kind}", key, declared)
            for key in declared:
                if not computed.get(key):
                    text = "No task computes this output. Select an output of a task, or remove it."
                    outputs.faults.add(f"{outputs.path}.{kind}s.{key}", text)
        return dag

    def _task(self, name: str, section: Section) -> ir.Task:
        part = section.section("component_ref")
        component = reference(part, "name", "component", self._components)
        inner = self._components.get(component)
        if inner is None:
            return ir.Task(name=name, component=component)
        inputs, caching = section.section("inputs"), section.section("caching_options")
        trigger = section.section("trigger_policy")
        if strategy := trigger.enum("strategy"):
            is_known(trigger, "strategy", "strategy", strategy, _STRATEGIES)
        for index, upstream in enumerate(section.texts("dependent_tasks")):
            is_known(section, f"dependent_tasks[{index}]", "task", upstream, self._tasks)
        _check_expression(trigger, "condition", expressions.CONDITION_VARIABLES, inner)
        task = ir.Task(
            name=name,
            component=component,
            parameters={
                key: self._parameter(part, inner.input_parameters.get(key), strategy == _ALWAYS)
                for key, part in entries(inputs, "parameters")
            },
            artifacts={
                key: self._artifact(part, inner.input_artifacts.get(key))
                for key, part in entries(inputs, "artifacts")
            },
            dependent_tasks=section.texts("dependent_tasks"),
            enable_cache=caching.flag("enable_cache"),
            cache_key=caching.text("cache_key"),
            condition=trigger.text("condition"),
            runs_always=strategy == _ALWAYS,
            iterator=_iterator(section, inner),
            retry=convert(section.section("retry_policy").values, ir.RetryPolicy),
        )
        _check_inputs(inputs, task, inner)
        if (count := task.retry.max_count) > MAX_RETRIES:
            text = f"A task is retried at most {MAX_RETRIES} times, not {count}. Set a lower number."
            section.fault("retry_policy.max_retry_count", text)
        return task

    def _parameter(
        self, section: Section, target: ir.InputParameter | None, runs_always: bool
    ) -> ir.ParameterBinding:
        """Read the source of the input `target`, which is None for an undeclared input."""
        selector = section.text("parameter_expression_selector")
        source: ir.ParameterSource = ir.Constant(None)
        match only(
            section,
            "task_output_parameter",
            "runtime_value",
            "component_input_parameter",
            "task_final_status",
        ):
            case "task_output_parameter" as name:
                source = self._output(section.section(name), "parameter", "task")
            case "component_input_parameter" as name:
                source = self._input(section, name)
            case "task_final_status" as name:
                part = section.section(name)
                source = ir.FinalStatus(reference(part, "producer_task", "task", self._tasks))
                if not runs_always:
                    text = "Only an exit task can receive the status of a task. Use dsl.ExitHandler."
                    section.fault(name, text)
                if target and target.type.value not in _STATUS_TYPES:
                    text = f"A status does not match the type {target.type.value}. Use STRUCT."
                    section.fault("", text)
            case "runtime_value" as name:
                source = constant_or_input(section.section(name))
                if isinstance(source, ir.ComponentInput):
                    source = self._input(section.section(name), "runtime_parameter")
                elif target and not selector:
                    value = typed(section, name, source.value, target.type, target.literals)
                    source = ir.Constant(value)
            case _:
                pass
        # A DAG may pass its own input, which is a status, on to an inner task.
        is_status = isinstance(source, ir.FinalStatus | ir.ComponentInput)
        if target and target.type is ir.ParameterType.FINAL_STATUS and not is_status:
            section.fault("", "This input accepts only the status of a task. Set task_final_status.")
        _check_expression(section, "parameter_expression_selector", expressions.SELECTOR_VARIABLES)
        return ir.ParameterBinding(source, selector)

    def _input(self, section: Section, field: str) -> ir.ComponentInput:
        name, declared = section.text(field), self._component.input_parameters
        if name not in declared and _LEAKED_ITEM in section.path:
            section.fault(
                field,
                f"The loop item {values.show(name)} does not exist outside of its loop, which is an error of "
                "KFP (kubeflow/pipelines#13273). Pass the whole item to the component, not item.KEY.",
            )
        else:
            is_known(section, field, "input parameter", name, declared)
        return ir.ComponentInput(name)

    def _artifact(self, section: Section, target: ir.InputArtifact | None) -> ir.ArtifactSource:
        """Read the source of the input `target`, and check that only a list becomes a list."""
        source: ir.ArtifactSource
        match only(section, "task_output_artifact", "component_input_artifact"):
            case "task_output_artifact" as name:
                source = self._output(section.section(name), "artifact", "task")
                producer = self._producer(source.task)
                origin = producer.output_artifacts.get(source.key) if producer else None
                # A loop collects the outputs of its iterations.
                is_collected = origin is not None and _is_loop(self._tasks[source.task])
            case "component_input_artifact" as name:
                declared, is_collected = self._component.input_artifacts, False
                source = ir.ComponentInput(reference(section, name, "input artifact", declared))
                origin = declared.get(source.name)
            case _:
                return ir.ComponentInput("")
        if target and origin and target.is_list is not (origin.is_list or is_collected):
            kinds = ("list", "single artifact")
            actual, expected = reversed(kinds) if target.is_list else kinds
            section.fault(
                "",
                f"The source is a {actual}, but the input is a {expected}. Use dsl.Collected to create a "
                "list, or dsl.ParallelFor to process its items.",
            )
        return source

    def _parameter_selectors(self, section: Section) -> tuple[ir.TaskOutput, ...]:
        name = only(section, "value_from_parameter", "value_from_oneof")
        if name == "value_from_parameter":
            return (self._output(section.section(name), "parameter", "subtask"),)
        parts = section.section("value_from_oneof").sections("parameter_selectors")
        return tuple(self._output(part, "parameter", "subtask") for part in parts)

    def _output(self, section: Section, kind: str, role: str) -> ir.TaskOutput:
        """Read a reference to an output of a task. `kind`: parameter or artifact. `role`: task or subtask, as
        in the names of the fields."""
        task, field = section.text(f"producer_{role}"), f"output_{kind}_key"
        source = ir.TaskOutput(task, section.text(field))
        is_known(section, f"producer_{role}", "task", task, self._tasks)
        if producer := self._producer(task):
            outputs = {"parameter": producer.output_parameters, "artifact": producer.output_artifacts}
            is_known(section, field, f"output {kind}", source.key, outputs[kind])
        return source

    def _producer(self, task: str) -> ir.Component | None:
        """Return the component of a task, or None if the task or the component does not exist."""
        if task not in self._tasks:
            return None
        return self._components.get(self._tasks[task].section("component_ref").text("name"))


def _is_loop(task: Section) -> bool:
    return any(map(task.has, _ITERATORS))


def _check_inputs(section: Section, task: ir.Task, inner: ir.Component) -> None:
    """Check that a task sets only known inputs and all required ones. An iterator sets one, too."""
    item = task.iterator.item_input if task.iterator else ""
    required = f"The component {task.component} requires this input. Set it, or make it optional."
    for kind, bound, declared in (
        ("parameter", task.parameters, inner.input_parameters),
        ("artifact", task.artifacts, inner.input_artifacts),
    ):
        for key in bound:
            if key not in _COMPILER_INPUTS and not key.startswith(_COMPILER_PREFIX):
                is_known(section, f"{kind}s.{key}", f"input {kind}", key, declared)
        for key, target in declared.items():
            if not target.is_optional and key not in bound and key != item:
                section.faults.add(f"{section.path}.{kind}s.{key}", required)


def _check_expression(
    section: Section, field: str, variables: Collection[str], inner: ir.Component | None = None
) -> None:
    """Check an expression. `inner`: the component whose inputs are the variable `inputs`."""
    if not (text := section.text(field)):
        return
    try:
        expression = expressions.parse(text)
    except ValueError as error:
        section.fault(field, str(error))
        return
    known: dict[str, Collection[str]] = {"variable": variables}
    if inner:
        known["input parameter"] = inner.input_parameters
        known["input artifact"] = inner.input_artifacts
    for kind, name in sorted(expressions.references(expression)):
        if kind in known:
            is_known(section, field, kind, name, known[kind])


def _iterator(section: Section, inner: ir.Component) -> ir.Iterator | None:
    if not _is_loop(section):
        return None
    name = only(section, *_ITERATORS)
    part, is_artifact = section.section(name), name == _ITERATORS[0]
    kind, source = name.removesuffix("_iterator"), part.section("items")
    declared = inner.input_artifacts if is_artifact else inner.input_parameters
    item = reference(part, "item_input", f"input {kind}", declared)
    items: str | tuple[ir.Json, ...]
    if not is_artifact and only(source, "raw", "input_parameter") == "raw":
        items = _raw_items(source, inner.input_parameters.get(item))
    else:
        bound = section.section("inputs").section(f"{kind}s").values
        items = reference(source, f"input_{kind}", f"input {kind}", bound)
    limit = section.section("iterator_policy").integer("parallelism_limit")
    return ir.Iterator(items, item, of_artifacts=is_artifact, parallelism_limit=limit)


def _raw_items(section: Section, target: ir.InputParameter | None) -> tuple[ir.Json, ...]:
    try:
        items = values.parse_output(section.text("raw"), ir.ParameterType.LIST)
        return tuple(values.as_input(item, target.type) if target else item for item in items)
    except ValueError as error:
        section.fault("raw", str(error))
        return ()


def constant_or_input(section: Section) -> ir.Constant | ir.ComponentInput:
    """Read a ValueOrRuntimeParameter."""
    kind = only(section, "constant", "runtime_parameter", "constant_value")
    if kind == "runtime_parameter":
        return ir.ComponentInput(section.text(kind))
    value = section.values.get(kind)
    if kind == "constant_value":
        try:
            value = values.read_value(value)
        except ValueError as error:
            section.fault(kind, str(error))
    return ir.Constant(value)


def typed(
    section: Section, name: str, value: ir.Json, kind: ir.ParameterType, literals: tuple[ir.Json, ...] = ()
) -> ir.Json:
    """Return a constant, which is the field `name`, in the form of its type."""
    # The values of placeholders are not known yet.
    if isinstance(value, str) and "{{$" in value:
        return value
    try:
        value = values.as_input(value, kind)
        values.check_literals(value, literals)
    except ValueError as error:
        section.fault(name, str(error))
    return value


def sort(
    graph: Mapping[str, Iterable[str]], section: Section, field: str, problem: str, separator: str
) -> tuple[str, ...]:
    """Return the nodes of a graph after those to which they refer, or report a cycle and return ()."""
    try:
        return tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        names = separator.join(error.args[1][:20])
        section.fault(field, f"{problem}: {names}. Remove one of the references.")
        return ()
