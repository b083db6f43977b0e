"""Lists models of a project in a region, and describes them with their lineage (facts/models#lineage).

No lineage is stored separately: it is put together from the records of the model, its pipeline, its job, the
metadata store, and imported evaluations. What was deleted since is left out.
"""

import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final, cast

from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import text_micros
from trainshed.api.trainshed_v1.call import Fields, JsonCall
from trainshed.api.trainshed_v1.places import read_place
from trainshed.core.datasets.records import DatasetName
from trainshed.core.errors import InvalidRequest, NotFound
from trainshed.core.lifecycle.records import Job
from trainshed.core.metadata.conditions import (
    And,
    Condition,
    Field,
    LinkedTo,
    MetadatumIs,
    NodeQuery,
    Or,
    TextIs,
)
from trainshed.core.metadata.records import (
    EXPERIMENT_RUN,
    EdgeRole,
    Node,
    NodeKind,
    NodeName,
    StoreName,
)
from trainshed.core.names import JobName, ModelName
from trainshed.core.operators import Operator
from trainshed.core.pipelines.records import ModelVersion, Pipeline
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.store.port import Reader
from trainshed.wire.trainshed_v1 import models as records

_MOST: Final = 100
"""Most models of a list."""
_SHOWN: Final = 20
"""Most versions of a model, and most entries of each list of a version."""
_STORE: Final = "default"
_MODEL: Final = "google.VertexModel"
_RUN_OF_JOB: Final = "experimentRun"


async def list_(call: JsonCall) -> records.ModelList:
    """`GET /trainshed/v1/models[?project=P&region=R]`: list the default version of each model, newest model
    first."""
    project, region = _place(call)
    found = await call.services.models.models(project, region, "", _MOST + 1)
    return records.ModelList(
        project=project,
        region=region,
        models=tuple(_summary(record) for record in found[:_MOST]),
        more=len(found) > _MOST,
    )


async def describe(call: JsonCall) -> records.ModelDescription:
    """`GET /trainshed/v1/models/{model}[?project=P&region=R]`: return its versions, each with the job, the
    data and the parameters that made it, and its evaluations. Raises NotFound."""
    project, region = _place(call)
    name = ModelName(project, region, call.target)
    versions = await call.services.models.versions(name)
    newest = json.loads(versions[0].public_json)
    shown = [await _version(call.services, record) for record in versions[:_SHOWN]]
    return records.ModelDescription(
        name=str(name),
        model_id=name.model_id,
        description=newest.get("description", ""),
        labels=dict(versions[0].labels),
        versions=tuple(shown),
        more=len(versions) > _SHOWN,
    )


def split_text(config: Mapping[str, Any]) -> str:
    """Return how an inputDataConfig, in public JSON, splits a dataset; "" if it does not say."""
    parts = ("training", "validation", "test")
    for kind, split in config.items():
        if not kind.endswith("Split") or not isinstance(split, dict):
            continue
        said = cast("dict[str, Any]", split)
        words = [kind.removesuffix("Split")]
        if said.get("key"):
            words.append(f"by {said['key']}")
        fractions = [said.get(f"{part}Fraction", 0) for part in parts]
        if any(fractions):
            words.append("/".join(f"{fraction:g}" for fraction in fractions))
        words += [f"{part}: {said[f'{part}Filter']}" for part in parts if said.get(f"{part}Filter")]
        return " ".join(words)
    return ""


def _place(call: JsonCall) -> tuple[str, str]:
    fields = Fields({name: call.parameter(name) or None for name in ("project", "region")})
    project, region = read_place(call, fields, "models")
    fields.refuse()
    return project, region


def _summary(record: ModelVersion) -> records.ModelSummary:
    return records.ModelSummary(
        name=str(record.name),
        model_id=record.name.model_id,
        display_name=record.display_name,
        version=record.version,
        aliases=record.aliases,
        artifact_uri=record.artifact_uri,
        created=text_micros(record.created),
        made_by=record.pipeline or record.job,
    )


async def _version(services: Services, record: ModelVersion) -> records.ModelVersion:
    pipeline, job = await _makers(services.reader, record)
    runs, sources = await _lineage(services, record, job)
    evaluations = await services.evaluations.evaluations(record.name, record.version, 0, _SHOWN)
    return records.ModelVersion(
        version=record.version,
        aliases=record.aliases,
        display_name=record.display_name,
        description=json.loads(record.public_json).get("versionDescription", ""),
        artifact_uri=record.artifact_uri,
        created=text_micros(record.created),
        origin=await _origin(services, record, pipeline, job),
        runs=runs,
        sources=sources,
        evaluations=tuple(
            records.ModelEvaluation(
                name=str(each.name),
                display_name=each.display_name,
                created=text_micros(each.created),
                metrics=dict(each.numbers),
            )
            for each in evaluations
        ),
    )


async def _makers(reader: Reader, record: ModelVersion) -> tuple[Pipeline | None, Job | None]:
    """Return the pipeline and the job that made a version, as far as they still exist."""
    pipeline = await _work(reader, record.pipeline)
    job = await _work(reader, record.job)
    if isinstance(pipeline, Pipeline):
        try:
            job, _ = await reader.job_by_uid(pipeline.best_job or pipeline.job)
        except NotFound:
            job = None
    return (
        pipeline if isinstance(pipeline, Pipeline) else None,
        job if isinstance(job, Job) else None,
    )


async def _work(reader: Reader, name: str) -> Work | None:
    if not name:
        return None
    try:
        return (await reader.job(JobName.parse(name)))[0]
    except NotFound:
        return None


async def _origin(
    services: Services, record: ModelVersion, pipeline: Pipeline | None, job: Job | None
) -> records.ModelOrigin:
    config: dict[str, Any] = {}
    if pipeline is not None:
        config = json.loads(pipeline.public_json).get("inputDataConfig") or {}
    dataset, display_name = "", ""
    if number := config.get("datasetId", ""):
        name = DatasetName(record.name.project_id, record.name.location, str(number))
        dataset = str(name)
        with contextlib.suppress(NotFound):
            display_name = (await services.datasets.dataset(name)).display_name
    parameters: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    trial = int(job.spec.trial or 0) if job is not None else 0
    if job is not None and job.parent is not None and trial:
        parameters, metrics = await _trial(services, job, trial)
    return records.ModelOrigin(
        pipeline=record.pipeline,
        job=str(job.name) if job is not None else record.job,
        state=job.state.value if job is not None else "",
        dataset=dataset,
        dataset_display_name=display_name,
        split=split_text(config),
        arguments=job.spec.pools[0].program.args if job is not None else (),
        trial=trial,
        parameters=parameters,
        metrics=metrics,
    )


async def _trial(
    services: Services, job: Job, number: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the parameters of the trial that a job ran, and its final metrics."""
    assert job.parent is not None
    try:
        tuning, _ = await services.reader.job_by_uid(job.parent.uid)
        if not isinstance(tuning, TuningJob):
            return {}, {}
        trial = (await services.studies.trial(tuning.study, number)).trial
    except NotFound:
        return {}, {}
    return dict(trial.parameters), dict(trial.final.metrics) if trial.final else {}


async def _lineage(
    services: Services, record: ModelVersion, job: Job | None
) -> tuple[tuple[records.ModelRun, ...], tuple[records.ModelSource, ...]]:
    """Return the runs that the version or its job belongs to, and the artifacts that were read to make it, as
    clients have recorded them in the default metadata store."""
    store = StoreName(record.name.project_id, record.name.location, _STORE)
    runs: dict[NodeName, Node] = {}
    sources: dict[NodeName, Node] = {}
    if job is not None and (run := await _run_of(services, job)) is not None:
        runs[run.name] = run
    called = [f"{record.name}@{record.version}"]
    if "default" in record.aliases:
        called.append(str(record.name))
    try:
        found = await _nodes(
            services,
            store,
            NodeKind.ARTIFACT,
            And(
                (
                    TextIs(Field.SCHEMA_TITLE, Operator.EQUAL, _MODEL),
                    Or(
                        tuple(
                            MetadatumIs(("resourceName",), Operator.EQUAL, name) for name in called
                        )
                    ),
                )
            ),
        )
        if found:
            artifacts = tuple(node.name for node in found)
            made = LinkedTo(EdgeRole.OUTPUT, artifacts, inward=False)
            executions = await _nodes(services, store, NodeKind.EXECUTION, made)
            names = tuple(node.name for node in executions)
            for run in await _nodes(
                services,
                store,
                NodeKind.CONTEXT,
                And(
                    (
                        TextIs(Field.SCHEMA_TITLE, Operator.EQUAL, EXPERIMENT_RUN),
                        LinkedTo(EdgeRole.MEMBER, (*artifacts, *names), inward=False),
                    )
                ),
            ):
                runs[run.name] = run
            if names:
                read = LinkedTo(EdgeRole.INPUT, names, inward=True)
                for source in await _nodes(services, store, NodeKind.ARTIFACT, read):
                    sources[source.name] = source
    except NotFound:
        pass  # Nothing was recorded: there is no such store.
    return tuple(map(_run, runs.values())), tuple(map(_source, sources.values()))


async def _nodes(
    services: Services, store: StoreName, kind: NodeKind, condition: Condition
) -> tuple[Node, ...]:
    return await services.metadata.nodes(NodeQuery(store, kind, condition, _SHOWN))


async def _run_of(services: Services, job: Job) -> Node | None:
    """Return the experiment run that a job was created for."""
    name = json.loads(job.public_json).get("jobSpec", {}).get(_RUN_OF_JOB, "")
    try:
        return await services.metadata.node(NodeName.parse(name, NodeKind.CONTEXT))
    except (InvalidRequest, NotFound):
        return None


def _run(node: Node) -> records.ModelRun:
    return records.ModelRun(
        name=str(node.name),
        display_name=node.display_name or node.name.node_id,
        state=str(node.metadata.get("_state", "")),
        parameters=_map(node.metadata.get("_params")),
        metrics=_map(node.metadata.get("_metrics")),
    )


def _source(node: Node) -> records.ModelSource:
    return records.ModelSource(
        name=str(node.name),
        display_name=node.display_name,
        schema_title=node.schema_title,
        uri=node.uri,
    )


def _map(value: object) -> dict[str, Any]:
    """Return a JSON object as it is, {} for anything else; clients may write anything there."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
