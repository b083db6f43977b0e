"""Resolves the inputs of tasks and the outputs of DAGs and loops. Pure."""

from collections.abc import Sequence
from typing import Final, cast

import msgspec.json
from msgspec import UNSET
from msgspec.structs import replace

from trainshed_pipelines.runs.records import Artifact, TaskRun, Values
from trainshed_pipelines.runs.tree import Tree
from trainshed_pipelines.template import expressions, values
from trainshed_pipelines.template.placeholders import Context
from trainshed_pipelines.template.structures import (
    ArtifactSource,
    Component,
    ComponentInput,
    Constant,
    Dag,
    FinalStatus,
    Iterator,
    Json,
    ParameterSource,
    Task,
    TaskOutput,
)

MAX_INPUTS: Final = 16 << 20
"""Maximum size in bytes of the input parameters of a task as JSON. Placeholders can multiply texts."""

MAX_CONDITION_WORK: Final = 1 << 28
"""Maximum length of a condition times the size in bytes of its inputs. Comparing large lists is slow."""


class InputError(ValueError):
    """An input of a task has no usable value. The message is a sentence for the user."""


_MISSING = object()


def with_task(facts: Context, task: TaskRun) -> Context:
    """Add the placeholders of a task to those of its pipeline job."""
    return replace(facts, pipeline_task_name=task.name, pipeline_task_uuid=str(task.number + 1))


def resolve_inputs(tree: Tree, task: TaskRun, facts: Context) -> Values:
    """Return the inputs of a task whose upstream tasks have ended. `facts`: the placeholders of the pipeline
    job. Raises InputError."""
    facts = with_task(facts, task)
    try:
        return Values(_parameters(tree, task, facts), _all_artifacts(tree, task))
    except InputError:
        raise
    except ValueError as fault:
        raise InputError(f"An input of the task is invalid: {fault}") from None


def _bound_values(tree: Tree, task: TaskRun, facts: Context) -> dict[str, Json]:
    """Return the values to which the task's parameters are bound. Placeholders in constants refer to the
    other inputs of the task, so constants come last."""
    bindings = tree.definition(task).parameters
    bound, size = dict[str, Json](), 0
    for key, binding in sorted(bindings.items(), key=lambda item: isinstance(item[1].source, Constant)):
        if isinstance(binding.source, Constant):
            context = replace(facts, parameters=bound)
            value = context.resolve_value(binding.source.value)
        else:
            value = _parameter(tree, task, binding.source, facts)
        if value is not _MISSING:
            bound[key] = _selected(key, binding.selector, value) if binding.selector else value
            size += len(msgspec.json.encode(bound[key]))
            if size > MAX_INPUTS:
                text = f"The inputs of the task have more than {MAX_INPUTS:,} bytes."
                raise InputError(f"{text} Pass large values as artifacts.")
    return bound


def _parameters(tree: Tree, task: TaskRun, facts: Context) -> dict[str, Json]:
    definition = tree.definition(task)
    bound = _bound_values(tree, task, facts)
    parameters = dict[str, Json]()
    for key, expected in tree.component(task).input_parameters.items():
        if key in bound:
            try:
                parameters[key] = values.as_input(bound[key], expected.type)
            except ValueError as fault:
                raise InputError(f"The input parameter {key!r} of the task {fault}.") from None
        elif expected.default is not UNSET:
            parameters[key] = facts.resolve_value(expected.default)
        elif not expected.is_optional and not _is_item(definition, key):
            raise InputError(
                f"The input parameter {key!r} of the task has no value, because the task that computes it "
                "did not run or has not written it."
            )
    return parameters


def _all_artifacts(tree: Tree, task: TaskRun) -> dict[str, tuple[Artifact, ...]]:
    definition = tree.definition(task)
    artifacts = dict[str, tuple[Artifact, ...]]()
    for key, wanted in tree.component(task).input_artifacts.items():
        source = definition.artifacts.get(key)
        sources = () if source is None else _artifacts(tree, task, source)
        if sources:
            artifacts[key] = sources
        elif not (wanted.is_optional or wanted.is_list or _is_item(definition, key)):
            raise InputError(
                f"The input artifact {key!r} of the task does not exist, because the task that creates it "
                "did not run or has not written it."
            )
    return artifacts


def _is_item(definition: Task, key: str) -> bool:
    return definition.iterator is not None and definition.iterator.item_input == key


def _parameter(tree: Tree, task: TaskRun, source: ParameterSource, facts: Context) -> Json:
    """Return the value of a source that is not a constant, or `_MISSING`."""
    match source:
        case TaskOutput(name, key):
            return tree.sibling(task, name).outputs.parameters.get(key, _MISSING)
        case ComponentInput(name):
            return tree[task.parent].inputs.parameters.get(name, _MISSING)
        case FinalStatus(name):
            return _final_status(tree.sibling(task, name), facts.pipeline_job_resource_name)
        case Constant(value):
            return value


def _final_status(task: TaskRun, pipeline_job: str) -> Json:
    status: dict[str, Json] = {
        "state": task.state.value,
        "pipelineJobResourceName": pipeline_job,
        "pipelineTaskName": task.name,
    }
    if task.error is not None:
        status["error"] = {"code": task.error.code, "message": task.error.message}
    return status


def _artifacts(tree: Tree, task: TaskRun, source: ArtifactSource) -> tuple[Artifact, ...]:
    match source:
        case TaskOutput(name, key):
            return tree.sibling(task, name).outputs.artifacts.get(key, ())
        case ComponentInput(name):
            return tree[task.parent].inputs.artifacts.get(name, ())


def _selected(key: str, selector: str, value: Json) -> Json:
    try:
        return expressions.select(expressions.parse(selector), value)
    except ValueError as fault:
        raise InputError(
            f"The expression {selector!r} of the input parameter {key!r} failed: {fault}."
        ) from None


def is_triggered(definition: Task, inputs: Values) -> bool:
    """Return whether the condition of a task is true. Raises InputError if it cannot be evaluated."""
    if not definition.condition:
        return True
    if len(definition.condition) * len(msgspec.json.encode(inputs)) > MAX_CONDITION_WORK:
        text = "The condition of the task is too long for inputs of this size."
        raise InputError(f"{text} Shorten it, or pass large values as artifacts.")
    try:
        return expressions.condition(expressions.parse(definition.condition), inputs)
    except ValueError as fault:
        raise InputError(
            f"The condition {definition.condition!r} of the task cannot be evaluated: {fault}."
        ) from None


Item = Json | Artifact


def items_of(definition: Task, inputs: Values, facts: Context) -> Sequence[Item]:
    """Return the items of a loop. `facts`: the placeholders of the pipeline job. Raises InputError if the
    loop's input is not a list."""
    iterator = definition.iterator
    assert iterator is not None, "only loops have items"
    if iterator.of_artifacts:
        assert isinstance(iterator.items, str), "artifacts are never constants"
        return inputs.artifacts.get(iterator.items, ())
    if isinstance(iterator.items, tuple):
        context = replace(facts, parameters=inputs.parameters)
        return [context.resolve_value(item) for item in iterator.items]
    value = inputs.parameters.get(iterator.items, [])
    if isinstance(value, str):
        try:
            value = values.plain(msgspec.json.decode(value))
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list):
        raise InputError(f"The loop needs a list in {iterator.items!r}, and received another value.")
    return cast("list[Json]", value)


def without_items(iterator: Iterator, inputs: Values, component: Component) -> Values:
    """Return the inputs that all iterations of a loop have. They include the items only if the component uses
    these. Otherwise, the stored inputs would grow with the square of the number of items."""
    dag, items = component.implementation, iterator.items
    if not (isinstance(dag, Dag) and isinstance(items, str)) or iterator.of_artifacts:
        return inputs
    sources = (b.source for task in dag.tasks.values() for b in task.parameters.values())
    if ComponentInput(items) in [s for s in sources if isinstance(s, ComponentInput)]:
        return inputs
    kept = {key: value for key, value in inputs.parameters.items() if key != items}
    return replace(inputs, parameters=kept)


def with_item(iterator: Iterator, inputs: Values, item: Item) -> Values:
    """Return the inputs of one iteration of a loop."""
    if isinstance(item, Artifact):
        return replace(inputs, artifacts={**inputs.artifacts, iterator.item_input: (item,)})
    return replace(inputs, parameters={**inputs.parameters, iterator.item_input: item})


def collect_outputs(tree: Tree, task: TaskRun) -> Values:
    """Return the outputs of a DAG whose tasks have ended. Outputs of tasks that did not run are missing."""
    dag = tree.component(task).implementation
    assert isinstance(dag, Dag), "only DAGs collect outputs"
    tasks = {child.name: child for child in tree.children(task.number)}
    parameters = dict[str, Json]()
    for key, selectors in dag.output_parameters.items():
        for selector in selectors:
            outputs = tasks[selector.task].outputs.parameters
            if selector.key in outputs:
                parameters[key] = outputs[selector.key]
                break
    artifacts = dict[str, tuple[Artifact, ...]]()
    for key, selectors in dag.output_artifacts.items():
        merged = [
            artifact
            for selector in selectors
            for artifact in tasks[selector.task].outputs.artifacts.get(selector.key, ())
        ]
        if merged:
            artifacts[key] = tuple(merged)
    return Values(parameters, artifacts)


def collect_iterations(tree: Tree, task: TaskRun, iterations: Sequence[TaskRun]) -> Values:
    """Return the outputs of a loop: a list of each output parameter, and all output artifacts, in the order
    of the items. Outputs that an iteration has not written are missing."""
    component = tree.component(task)
    ordered = sorted(iterations, key=lambda iteration: iteration.iteration)
    parameters: dict[str, Json] = {
        key: [
            iteration.outputs.parameters[key] for iteration in ordered if key in iteration.outputs.parameters
        ]
        for key in component.output_parameters
    }
    artifacts = {
        key: tuple([a for iteration in ordered for a in iteration.outputs.artifacts.get(key, ())])
        for key in component.output_artifacts
    }
    return Values(parameters, artifacts)
