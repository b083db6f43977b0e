"""Carries out the tasks of pipeline jobs: creates the jobs of programs, and reads their outputs from the
bucket.

A program finds its inputs in its arguments, and writes its outputs below the directory of its task, as KFP's
launcher defines (`runs.executor_io`).
"""

import asyncio
import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from msgspec.structs import replace

from trainshed.api.calls.registry import Registry
from trainshed.api.calls.services import Services
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.works import Work
from trainshed_pipelines.runs.bindings import with_task
from trainshed_pipelines.runs.caching import fingerprint
from trainshed_pipelines.runs.executor_io import OUTPUT_FILE, executor_input, read_outputs
from trainshed_pipelines.runs.google_components import for_payload, operation_of
from trainshed_pipelines.runs.lineage import Lineage
from trainshed_pipelines.runs.machine import kind_of
from trainshed_pipelines.runs.names import artifact_name, facts_of, task_directory
from trainshed_pipelines.runs.native import JOBS, RESOURCES, GoogleComponents, job_resources
from trainshed_pipelines.runs.reconciler import Started
from trainshed_pipelines.runs.records import Artifact, TaskKind, TaskRun, Values
from trainshed_pipelines.runs.table import Runs
from trainshed_pipelines.runs.task_jobs import job_request, new_task_job
from trainshed_pipelines.runs.tree import Tree
from trainshed_pipelines.template.placeholders import Context
from trainshed_pipelines.template.structures import (
    Component,
    ComponentInput,
    Container,
    Importer,
    Json,
    ParameterType,
    Resources,
)
from trainshed_pipelines.template.values import MAX_DEPTH, plain

_MAX_OUTPUT: Final = 1 << 20
"""Maximum size in bytes of an output parameter, or of all outputs in JSON."""
_MAX_OUTPUTS: Final = 8 << 20
"""Maximum length in characters of all output parameters of a task that are in files of their own."""


_EMPTY: Final[Mapping[ParameterType, str]] = {
    ParameterType.DOUBLE: "0",
    ParameterType.INTEGER: "0",
    ParameterType.STRING: "",
    ParameterType.BOOLEAN: "false",
    ParameterType.LIST: "[]",
    ParameterType.STRUCT: "{}",
}
"""Output parameters of programs that the emulator has replaced, by type."""


def _finite(text: str) -> float | None:
    return float(text) if isfinite(float(text)) else None


def _finite_integer(text: str) -> int | None:
    return int(text) if isfinite(float(text)) else None


_FINITE: Final[dict[str, Any]] = {
    "parse_constant": _finite,
    "parse_float": _finite,
    "parse_int": _finite_integer,
}
"""Arguments of `json.loads` that replace NaN and infinite numbers by null, because public messages cannot
contain them. Metrics may be NaN."""


class Programs:
    """Implements `runs.reconciler.Tasks`."""

    def __init__(self, services: Services, runs: Runs, lineage: Lineage, registry: Registry) -> None:
        self._services = services
        self._runs = runs
        self._lineage = lineage
        self._google = GoogleComponents(services, registry)

    def kind_of(self, component: Component) -> TaskKind:
        operation = operation_of(component)
        is_native = operation is not None and operation.is_immediate
        return TaskKind.NATIVE if is_native else kind_of(component)

    async def start(self, run: PipelineJob, tree: Tree, task: TaskRun) -> Started:
        component = tree.component(task)
        if isinstance(component.implementation, Importer):
            outputs = _import(run, task, component)
            if not component.implementation.reimport:
                outputs = await self._lineage.reuse(run, outputs)
            return Started(outputs=outputs)
        before = tree.earlier.get(tree.path(task))
        if before is not None and before.component == task.component and before.inputs == task.inputs:
            return Started(outputs=before.outputs, cached_from=before.cached_from)
        key = ""
        definition = tree.definition(task)
        if definition.enable_cache:
            key = await asyncio.to_thread(fingerprint, definition, component, task.inputs)
            cached = await self._runs.cached(run.name, key)
            if cached is not None and await self._are_there(run, cached.outputs):
                return Started(outputs=cached.outputs, fingerprint=key, cached_from=cached.source)
        container = await asyncio.to_thread(_resolved, run, tree, task)
        directory = _directory(run, task)
        operation = operation_of(component)
        if task.kind is TaskKind.NATIVE:
            _, planned = _executor_input(run, tree, task)
            written = await self._google.carry_out(run, task, component, container.args)
            return Started(outputs=read_outputs(component, planned, written, {}), fingerprint=key)
        if operation is not None and operation in JOBS:
            work = await self._google.new_job(run, operation, container.args)
        else:
            request = job_request(run, tree.path(task), container)
            work = await new_task_job(self._services, run, request)
        await asyncio.to_thread(self._services.buckets.make_directory, directory)
        return Started(work, fingerprint=key)

    async def _are_there(self, run: PipelineJob, outputs: Values) -> bool:
        """Return whether the files, models and datasets of cached artifacts still exist. Files in buckets
        that the project cannot read do not, because a program could otherwise search other projects."""
        artifacts = [a for listed in outputs.artifacts.values() for a in listed]
        for artifact in artifacts:
            if not await self._google.exists(artifact):
                return False
        # Metrics consist of metadata, and most programs write no file for them.
        uris = {a.uri for a in artifacts if not a.type.schema_title.endswith("Metrics")}
        for uri in uris:
            if uri.startswith("gs://"):
                bucket = uri.removeprefix("gs://").partition("/")[0]
                if self._services.buckets.is_closed(bucket, run.name.project_id):
                    return False
                if await asyncio.to_thread(self._services.buckets.last_written, uri):
                    continue
                if not await asyncio.to_thread(self._services.buckets.has_object, uri):
                    return False
        return True

    async def outputs(self, run: PipelineJob, tree: Tree, task: TaskRun, work: Work) -> Values:
        component = tree.component(task)
        directory = _directory(run, task)
        _, planned = _executor_input(run, tree, task)
        is_google = operation_of(component) in JOBS
        own = {RESOURCES: job_resources(work.name)} if is_google else {}
        return await asyncio.to_thread(self._read, component, planned, directory, own)

    def _read(self, component: Component, planned: Values, directory: str, own: Mapping[str, str]) -> Values:
        """Return the outputs of a program. `own`: output parameters that the service determines."""
        text = self._read_file(f"{directory}/{OUTPUT_FILE}")
        try:
            written: Json = None if text is None else json.loads(text, **_FINITE)
            plain(written, -5)  # The file has five levels above the metadata of an artifact.
        except (ValueError, RecursionError) as fault:
            text = f"the file {OUTPUT_FILE} is not valid JSON with at most {MAX_DEPTH} levels"
            raise ValueError(f"{text}: {fault}.") from None
        files, size = dict[str, str | None](), 0
        for key in component.output_parameters:
            files[key] = text = self._read_file(f"{directory}/{key}")
            size += len(text or "")
            if size > _MAX_OUTPUTS:
                raise ValueError(
                    f"the output parameters have more than {_MAX_OUTPUTS:,} characters. Write large outputs "
                    "as artifacts."
                )
        if self._services.replace_spec is not None and written is None:
            # The emulator has replaced the program, which therefore has written nothing.
            kinds = component.output_parameters.items()
            files = {key: files[key] or _EMPTY[kind] for key, kind in kinds}
        return read_outputs(component, planned, written, {**files, **own})

    def _read_file(self, uri: str) -> str | None:
        """Return the text of an object, or None if it does not exist. Raises ValueError if it is too large or
        is not UTF-8."""
        try:
            with self._services.buckets.open(uri) as content:
                raw = content.read(_MAX_OUTPUT + 1)
        except FileNotFoundError:
            return None
        except PermissionError as fault:  # The program has changed the permissions of the file.
            raise ValueError(f"{fault} Let the program write readable files.") from None
        if len(raw) > _MAX_OUTPUT:
            raise ValueError(f"{uri} has more than {_MAX_OUTPUT:,} bytes. Write large outputs as artifacts.")
        return raw.decode()


def _directory(run: PipelineJob, task: TaskRun) -> str:
    return task_directory(run.root, run.name, task.name, task.number)


def _executor_input(run: PipelineJob, tree: Tree, task: TaskRun) -> tuple[Mapping[str, Json], Values]:
    directory = _directory(run, task)
    return executor_input(
        tree.component(task), task.inputs, directory, lambda key: artifact_name(run.name, task.number, key)
    )


def _context(run: PipelineJob, task: TaskRun, task_input: Mapping[str, Json] | None) -> Context:
    return replace(
        with_task(facts_of(run), task), parameters=task.inputs.parameters, executor_input=task_input
    )


def _resolved(run: PipelineJob, tree: Tree, task: TaskRun) -> Container:
    """Return the program of a task without placeholders. Raises ValueError."""
    container = tree.component(task).implementation
    assert isinstance(container, Container), "only containers run as jobs"
    task_input, _ = _executor_input(run, tree, task)
    context = _context(run, task, task_input)
    if operation_of(tree.component(task)) is not None:
        context = for_payload(context, tree.component(task))
    names = Resources.__struct_fields__
    texts = context.resolve_texts(getattr(container.resources, name) for name in names)
    resources: dict[str, Any] = dict(zip(names, texts, strict=True))
    variables = context.resolve_texts(value for _, value in container.env)
    return Container(
        context.resolve_text(container.image),
        context.resolve_args(container.command),
        context.resolve_args(container.args),
        tuple([(name, text) for (name, _), text in zip(container.env, variables, strict=True)]),
        Resources(**resources),
    )


def _import(run: PipelineJob, task: TaskRun, component: Component) -> Values:
    """Return the output of an importer task. Raises ValueError if its URI is empty."""
    importer = component.implementation
    assert isinstance(importer, Importer), "only importers import"
    context = _context(run, task, None)
    if isinstance(importer.uri, ComponentInput):
        uri: Json = task.inputs.parameters.get(importer.uri.name, "")
    else:
        uri = context.resolve_value(importer.uri.value)
    if not isinstance(uri, str) or not uri:
        raise ValueError(
            f"The URI of the artifact to import is {uri!r}. Set a text such as gs://BUCKET/PATH."
        )
    metadata: Json = context.resolve_value(dict(importer.metadata))
    return Values(
        artifacts={
            key: (Artifact(artifact_name(run.name, task.number, key), importer.type, uri, metadata, key),)
            for key in component.output_artifacts
        }
    )
