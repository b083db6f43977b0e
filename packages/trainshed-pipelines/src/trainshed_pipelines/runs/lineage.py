"""Records pipeline jobs in the metadata store: contexts, an execution per task, artifacts, and the events
between them (facts/pipelines#lineage).

The records are stored by the methods of MetadataService, which the addition trainshed-tracking provides.
Without it, nothing is recorded. The service calls the methods itself, so these calls are neither authorized
nor audited. The creation of the pipeline job was both.

All names are deterministic, and every write may be repeated. Only Unavailable is raised, and the caller then
repeats the step. After any other error, the affected record is missing and the pipeline job continues.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from trainshed.access.principals import Principal
from trainshed.api.aiplatform_v1.views import V1, message
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.registry import Registry
from trainshed.api.calls.services import Services
from trainshed.core.errors import AlreadyExists, RequestError, Unavailable
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.wire import json as wire_json
from trainshed_pipelines.runs import views
from trainshed_pipelines.runs.names import context_name, execution_name, metadata_store
from trainshed_pipelines.runs.records import ROOT, Artifact, TaskKind, TaskRun, TaskState, Values
from trainshed_pipelines.runs.tree import Tree

_SERVICE: Final = f"{V1}.MetadataService"
_PRINCIPAL: Final = Principal("trainshed-pipelines")
_RUN: Final = "system.PipelineRun"
_PIPELINE: Final = "system.Pipeline"
_BATCH: Final = 16
"""Number of concurrent calls. Their writes share commits, and other requests are served between batches."""

_log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")


class Lineage:
    """Writes and reads the records of pipeline jobs. It does nothing until `connect` is called."""

    def __init__(self) -> None:
        self._services: Services | None = None
        self._handlers: Handlers = {}

    def connect(self, services: Services, registry: Registry) -> None:
        """Use the methods of a service. Called once, after all additions are loaded."""
        if f"{_SERVICE}.CreateContext" in registry.handlers:
            self._services, self._handlers = services, registry.handlers

    # --- Contexts ---

    async def contexts(self, run: PipelineJob) -> tuple[Any, ...]:
        """Return the contexts of a pipeline job: the context of the run, and that of its pipeline. The second
        one is missing if another resource has its ID. () = nothing is recorded."""
        if self._services is None:
            return ()
        context = await self._context(context_name(run.name, run.name.job_id), _RUN)
        if context is None:
            return ()
        name = context_name(run.name, run.template)
        pipeline = await self._context(name, _PIPELINE) if name in context.parent_contexts else None
        return (context,) if pipeline is None else (context, pipeline)

    async def begin(self, run: PipelineJob) -> tuple[Any, ...]:
        """Create the contexts of a pipeline job if they do not exist. Return the same as `contexts`."""
        existing = await self.contexts(run)
        if self._services is None or len(existing) == 2:
            return existing
        parent, _, store_id = metadata_store(run.name).rpartition("/metadataStores/")
        with suppress(AlreadyExists):
            await self._try("CreateMetadataStore", parent=parent, metadata_store_id=store_id)
        for title, text in ((_PIPELINE, run.template), (_RUN, run.name.job_id)):
            context = message("Context", name=context_name(run.name, text), schema_title=title)
            context.display_name, context.schema_version = text[: views.MAX_NAME], "0.0.1"
            with suppress(AlreadyExists):
                await self._create("Context", context)
        pipeline = context_name(run.name, run.template)
        if await self._context(pipeline, _PIPELINE) is not None:
            children = [context_name(run.name, run.name.job_id)]
            await self._try("AddContextChildren", context=pipeline, child_contexts=children)
        if not (contexts := await self.contexts(run)):
            _log.warning("%s has no lineage: its ID is that of another context", run.name)
        return contexts

    async def _context(self, name: str, title: str) -> Any | None:
        """Return a context, or None if it does not exist or has another schema."""
        try:
            context = await self._call("GetContext", name=name)
            return context if context.schema_title == title else None
        except Unavailable:
            raise
        except RequestError:  # It does not exist, or its record is unreadable.
            return None

    # --- Tasks ---

    async def observe(self, run: PipelineJob, tree: Tree, changes: Sequence[TaskRun]) -> None:
        """Record the changed tasks, before their step is stored (`runs.reconciler.Observe`). Raises
        Unavailable."""
        contexts = await self.begin(run) if run.steps == 0 else ()
        if self._services is None or not (contexts or tree[ROOT].execution):
            return
        if not (tasks := [task for task in changes if _is_recorded(task)]):
            return
        artifacts = {
            artifact.name: artifact
            for task in tasks
            if task.kind not in (TaskKind.DAG, TaskKind.LOOP)
            for artifact in _artifacts(task.outputs)
        }
        stored = await _each(self._create_artifact, tuple(artifacts.values()))
        executions = await _each(lambda task: self._put_execution(run, tree, task), tasks)
        recorded = [task for task, done in zip(tasks, executions, strict=True) if done]
        await _each(lambda task: self._add_events(run, tree, task), recorded)
        new = [execution_name(run.name, task.number) for task in recorded if not task.execution]
        await self._try(
            "AddContextArtifactsAndExecutions",
            context=context_name(run.name, run.name.job_id),
            artifacts=[name for name, done in zip(artifacts, stored, strict=True) if done],
            executions=new,
        )
        # `get_pipeline_df` of the Vertex SDK searches the context of the pipeline for runs, and reads their
        # metrics from the outputs of the root execution.
        metrics = [
            {"artifact": artifact.name, "type": "OUTPUT"}
            for artifact in artifacts.values()
            if artifact.type.schema_title.endswith("Metrics")
        ]
        if metrics:
            root_name = execution_name(run.name, ROOT)
            await self._try("AddExecutionEvents", execution=root_name, events=metrics)
        for pipeline in contexts[1:]:
            root = {"context": pipeline.name, "executions": [execution_name(run.name, ROOT)]}
            await self._try("AddContextArtifactsAndExecutions", **root)
        for task in recorded:
            if not task.execution:
                tree.put(replace(task, execution=execution_name(run.name, task.number)))

    async def _create_artifact(self, artifact: Artifact) -> bool:
        """Create an artifact if it does not exist. Return whether it is stored."""
        with suppress(AlreadyExists):
            return await self._create("Artifact", views.artifact(artifact))
        return True

    async def _put_execution(self, run: PipelineJob, tree: Tree, task: TaskRun) -> bool:
        """Create or update the execution of a task. Return whether it is stored."""
        view = views.execution(run.name, replace(task, inputs=_own_inputs(tree, task)))
        if not task.execution:
            with suppress(AlreadyExists):
                return await self._create("Execution", view)
        update = {"execution": view, "allow_missing": True}
        return await self._try("UpdateExecution", **update) is not None

    async def _add_events(self, run: PipelineJob, tree: Tree, task: TaskRun) -> None:
        inputs = () if task.execution else _artifacts(_own_inputs(tree, task))
        events = [{"artifact": artifact.name, "type": "INPUT"} for artifact in inputs]
        events += [{"artifact": a.name, "type": "OUTPUT"} for a in _artifacts(task.outputs)]
        name = execution_name(run.name, task.number)
        if events and await self._try("AddExecutionEvents", execution=name, events=events) is None:
            # An artifact is missing, for example because a user has deleted it. Add the other events.
            for event in events:
                await self._try("AddExecutionEvents", execution=name, events=[event])

    # --- Importers ---

    async def reuse(self, run: PipelineJob, outputs: Values) -> Values:
        """Return the outputs of an importer with existing artifacts in place of new ones. An existing
        artifact must have the same URI, the same schema, and at least the metadata of the new one."""
        artifacts = {key: (await self._find(run, new),) for key, (new,) in outputs.artifacts.items()}
        return replace(outputs, artifacts=artifacts)

    async def _find(self, run: PipelineJob, new: Artifact) -> Artifact:
        """Return the newest existing artifact that is equal to a new one, or else the new one."""
        if self._services is None:
            return new
        uri, title = json.dumps(new.uri), json.dumps(new.type.schema_title)
        request = {"parent": metadata_store(run.name), "order_by": "create_time desc"}
        request["filter"] = f"uri={uri} AND schema_title={title}"
        page = await self._try("ListArtifacts", **request)
        for candidate in page.artifacts if page is not None else ():
            metadata = wire_json.to_public(candidate).get("metadata", {})
            if metadata | new.metadata == metadata:
                name, display_name = candidate.name, candidate.display_name
                return replace(new, name=name, metadata=metadata, display_name=display_name)
        return new

    # --- Calls ---

    async def _call(self, method: str, **fields: Any) -> Any:
        """Call a method of MetadataService. Raises its errors."""
        assert self._services is not None, "MetadataService is installed"
        name = f"{_SERVICE}.{method}"
        call = Call(_PRINCIPAL, self._services, name)
        return await self._handlers[name](call, message(f"{method}Request", **fields))

    async def _try(self, method: str, **fields: Any) -> Any | None:
        """Call a method, and return its response, or None after an error. Raises AlreadyExists and
        Unavailable."""
        try:
            return await self._call(method, **fields)
        except (AlreadyExists, Unavailable):
            raise
        except Exception as error:  # No error of the lineage may stop a pipeline job.
            target = next((fields[key] for key in ("context", "execution") if key in fields), "")
            name = getattr(target, "name", target)
            _log.warning("the lineage is incomplete: %s %s failed: %s", method, name, error)
            return None

    async def _create(self, kind: str, resource: Any) -> bool:
        """Create a context, artifact or execution. Return whether it is stored. Raises AlreadyExists and
        Unavailable."""
        parent, _, resource_id = resource.name.rsplit("/", 2)
        noun = kind.lower()
        fields = {"parent": parent, noun: resource, f"{noun}_id": resource_id}
        return await self._try(f"Create{kind}", **fields) is not None


async def _each(call: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Call a function for all items, and return the results in the same order."""
    results: list[R] = []
    for start in range(0, len(items), _BATCH):
        results += await asyncio.gather(*map(call, items[start : start + _BATCH]))
    return results


def _is_recorded(task: TaskRun) -> bool:
    """Return whether the state of a changed task is recorded: its start and its end."""
    if task.state in (TaskState.WAITING, TaskState.PENDING, TaskState.NOT_TRIGGERED):
        return False
    if task.state.is_final:
        return bool(task.started) or task.state is TaskState.FAILED
    return bool(task.started) and not task.execution


def _own_inputs(tree: Tree, task: TaskRun) -> Values:
    """Return the inputs of a task. For an iteration, omit the items of the loop: each iteration would
    otherwise have all of them, and the lineage would grow with the square of their number."""
    iterator = tree.definition(task).iterator if tree.is_iteration(task) else None
    items = iterator.items if iterator is not None else ""
    return Values(
        {key: value for key, value in task.inputs.parameters.items() if key != items},
        {key: value for key, value in task.inputs.artifacts.items() if key != items},
    )


def _artifacts(values: Values) -> list[Artifact]:
    """Return the artifacts that have names, each of them once."""
    by_name = {a.name: a for artifacts in values.artifacts.values() for a in artifacts if a.name}
    return list(by_name.values())
