"""Describes models with what made each version (facts/models#lineage).

No origin is stored separately: it is put together from the records of the model, its pipeline and its job.
What was deleted since is left out.
"""

import json
from typing import Any, Final

from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import text_micros
from trainshed.api.trainshed_v1.call import JsonCall, queried_place
from trainshed.core.datasets.records import DatasetName
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobName, ModelName
from trainshed.core.pipelines import ModelVersion, Pipeline
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.store.sqlite.reader import Reader
from trainshed.wire.trainshed_v1 import models as records

_SHOWN: Final = 20
"""Most versions of a model."""


async def describe(call: JsonCall) -> records.ModelDescription:
    """`GET /trainshed/v1/models/{model}[?project=P&region=R]`: return its versions, each with the job, the
    data and the parameters that made it. Raises NotFound."""
    name = ModelName(*queried_place(call, "models"), call.target)
    versions = await call.services.models.versions(name)
    return records.ModelDescription(
        name=str(name),
        model_id=name.model_id,
        description=json.loads(versions[0].public_json).get("description", ""),
        labels=dict(versions[0].labels),
        versions=tuple([await _version(call.services, record) for record in versions[:_SHOWN]]),
        more=len(versions) > _SHOWN,
    )


async def _version(services: Services, record: ModelVersion) -> records.ModelVersion:
    return records.ModelVersion(
        version=record.version,
        aliases=record.aliases,
        display_name=record.display_name,
        description=json.loads(record.public_json).get("versionDescription", ""),
        artifact_uri=record.artifact_uri,
        created=text_micros(record.created),
        origin=await _origin(services, record),
    )


async def _origin(services: Services, record: ModelVersion) -> records.ModelOrigin:
    pipeline = await _work(services.reader, record.pipeline)
    job = await _work(services.reader, record.job)
    dataset = ""
    if isinstance(pipeline, Pipeline):
        try:
            job, _ = await services.reader.job_by_uid(pipeline.best_job or pipeline.job)
        except NotFound:
            job = None
        config: dict[str, Any] = json.loads(pipeline.public_json).get("inputDataConfig") or {}
        if number := config.get("datasetId", ""):
            place = record.name.project_id, record.name.location
            dataset = str(DatasetName(*place, str(number)))
    if not isinstance(job, Job):
        return records.ModelOrigin(pipeline=record.pipeline, job=record.job, dataset=dataset)
    trial = int(job.spec.trial or 0)
    parameters, metrics = await _trial(services, job, trial)
    return records.ModelOrigin(
        pipeline=record.pipeline,
        job=str(job.name),
        state=job.state.value,
        dataset=dataset,
        arguments=job.spec.pools[0].program.args,
        trial=trial,
        parameters=parameters,
        metrics=metrics,
    )


async def _work(reader: Reader, name: str) -> Work | None:
    try:
        return (await reader.job(JobName.parse(name)))[0] if name else None
    except NotFound:
        return None


async def _trial(
    services: Services, job: Job, number: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the parameters of the trial that a job ran, and its final metrics; {} if it ran none."""
    if job.parent is None or not number:
        return {}, {}
    try:
        tuning, _ = await services.reader.job_by_uid(job.parent.uid)
        if not isinstance(tuning, TuningJob):
            return {}, {}
        trial = await services.studies.trial(tuning.study, number)
    except NotFound:
        return {}, {}
    return dict(trial.parameters), dict(trial.final.metrics) if trial.final else {}
