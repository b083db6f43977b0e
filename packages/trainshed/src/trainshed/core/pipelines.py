"""Training pipelines: their stored records, their models, and the effects of the backing job's state on a
pipeline (facts/resources#pipelines). Pure.

A pipeline and its job are stored in one step, so every pipeline has its job. The model is registered in the
commit that ends the pipeline. Times are nanoseconds since the epoch. 0 means that the event has not happened.
"""

import enum
import json

from msgspec import Struct

from trainshed.core.failure.messages import CANCELLED, INVALID_ARGUMENT
from trainshed.core.job import JobError
from trainshed.core.lifecycle import timeline as job_timeline
from trainshed.core.lifecycle.events import CancelRequested, TimelineEntry
from trainshed.core.lifecycle.records import Job, WorkRecord
from trainshed.core.lifecycle.states import JobState, JobTrigger
from trainshed.core.lifecycle.transition import WorkTransition
from trainshed.core.names import EvaluationName, JobUid, ModelName
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import Nanos


class Task(enum.StrEnum):
    """The kind of the pipeline's job: a custom job, or a tuning job whose best trial provides the model."""

    CUSTOM = "custom_task"
    TUNING = "hyperparameter_tuning_task"


class ModelDraft(Struct, frozen=True):
    """The model that a pipeline will create."""

    #: Id of the new model, or of the existing model that receives a new version.
    model_id: str
    display_name: str
    #: `modelToUpload` of the request in public JSON.
    public_json: str
    #: The gs:// directory of the model's files. None selects the job's model directory.
    artifact_uri: str | None = None
    #: Whether the model already exists (`parentModel`) and receives a new version.
    is_new_version: bool = False
    aliases: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


class PipelineSpec(Struct, frozen=True):
    """A valid training pipeline."""

    task: Task
    #: The gs:// directory below which the pipeline's job writes its model.
    output: str | None = None
    model: ModelDraft | None = None


class Pipeline(WorkRecord, frozen=True, kw_only=True):
    """A training pipeline. It has the same states as its job. Its outcome is decided before the end of its
    job only if it is cancelled."""

    spec: PipelineSpec
    #: The uid of the backing job, or 0 before its creation.
    job: JobUid = JobUid(0)
    #: The custom job of the best trial of a tuning task, or 0 if unknown.
    best_job: JobUid = JobUid(0)
    #: The model version that the pipeline created, as `MODEL_NAME@VERSION`.
    model: str | None = None


class ModelVersion(Struct, frozen=True):
    """One version of a model. Times are in nanoseconds since the epoch."""

    name: ModelName
    #: Number of the version, from 1.
    version: int
    display_name: str
    #: The model's input fields in public JSON.
    public_json: str
    artifact_uri: str
    created: Nanos
    updated: Nanos
    #: Aliases of the version. Exactly one version of each model has the alias "default".
    aliases: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    #: Name of the pipeline that trained the version, or None for an uploaded version.
    pipeline: str | None = None
    #: The job behind an uploaded version: the job whose output directory contains the artifacts, or whose
    #: program uploaded the version. None without such a job.
    job: str | None = None


class ModelEvaluation(Struct, frozen=True):
    """Metrics of one version of a model, as a user imported them."""

    name: EvaluationName
    version: int
    #: The evaluation in public JSON, as in the request.
    public_json: str
    #: Creation of the evaluation, in nanoseconds since the epoch.
    created: Nanos


def create_pipeline(pipeline: Pipeline, backing: Job | TuningJob) -> Pipeline:
    """Return a new pipeline in its stored form, with its backing job."""
    transition = WorkTransition(pipeline, pipeline.created)
    transition.change(job=backing.uid)
    transition.fire_job(JobTrigger.ADMITTED)
    return transition.job


def cancel(transition: WorkTransition[Pipeline], event: CancelRequested) -> None:
    """Accept a cancel of the pipeline. The controller cancels the running job at the pipeline's next step."""
    if not transition.job.state.is_final and transition.job.outcome is None:
        transition.cancel(event, f"The pipeline {job_timeline.cancelled_by(event)}")


def observe(transition: WorkTransition[Pipeline], backing: Job | TuningJob | None) -> None:
    """Apply the state of the backing job to the pipeline, except the job's success, for which the controller
    calls `succeed` or `fail`. `backing` is None if the job was deleted. The pipeline then fails."""
    pipeline = transition.job
    if pipeline.state.is_final:
        return
    if backing is None:
        error = JobError(INVALID_ARGUMENT, "The pipeline's job was deleted or is unreadable.")
        _end(transition, JobTrigger.FAILED, error)
        return
    if backing.started and not pipeline.started:
        transition.change(started=backing.started)
    match backing.state:
        case JobState.RUNNING:
            if transition.fire_job(JobTrigger.ALL_UP):
                text = f"{backing.name} is running."
                transition.record(TimelineEntry(transition.now, "running", text))
        case JobState.PREPARING if backing.started:
            transition.fire_job(JobTrigger.RETRIED)
        case JobState.FAILED:
            _end(transition, JobTrigger.FAILED, backing.error)
        case JobState.CANCELLED:
            why = f": {backing.error.message}" if backing.error else "."
            message = f"Its job {backing.name} was cancelled{why}"
            error = JobError(CANCELLED, message, cause="cancelled")
            transition.fire_job(JobTrigger.CANCEL_ACCEPTED)
            decided = pipeline.outcome.error if pipeline.outcome is not None else error
            _end(transition, JobTrigger.CANCELLED, decided)
        case _:
            pass


def artifacts(pipeline: Pipeline, best_trial: int) -> str:
    """Return the URI of a successful job's model: artifactUri, or the job's model directory. For a tuning
    task, use the directory of the best trial (facts/resources#trials)."""
    draft = pipeline.spec.model
    assert draft is not None
    if draft.artifact_uri:
        return draft.artifact_uri
    assert pipeline.spec.output is not None, "without it the model has an artifactUri"
    base = pipeline.spec.output.removesuffix("/")
    return f"{base}/{best_trial}/model" if pipeline.spec.task is Task.TUNING else f"{base}/model"


def succeed(transition: WorkTransition[Pipeline], version: ModelVersion | None, best_job: JobUid) -> None:
    """End the pipeline after its job succeeded. A requested model is registered in the same commit.
    `best_job`: the job of the best trial of a tuning task, or 0 for other tasks."""
    version_name = f"{version.name}@{version.version}" if version else None
    transition.fire_job(JobTrigger.SUCCEEDED)
    at = max(transition.now, transition.job.updated)
    started = transition.job.started or at
    transition.change(model=version_name, best_job=best_job, started=started, ended=at)
    left = f" It uploaded the model {version_name}." if version_name else ""
    text, details = f"The pipeline succeeded.{left}", {"model": version_name or ""}
    transition.record(TimelineEntry(transition.now, "succeeded", text, details))


def model_fault(
    draft: ModelDraft, name: ModelName, uri: str, versions: tuple[ModelVersion, ...], *, is_there: bool
) -> str | None:
    """Return the reason if a job succeeded but provides no usable model, otherwise None. `versions`: the
    versions of the model with this name. `is_there`: whether an object exists at `uri`."""
    if not is_there:
        return (
            f"{uri} contains no model. The program must write its model to the directory in "
            "AIP_MODEL_DIR, or model_to_upload.artifact_uri must specify its location."
        )
    if draft.is_new_version and not versions:
        return f"{name}, the parent of the new model version, was deleted during the training."
    if versions and not draft.is_new_version:
        # The service adds a version to an existing model only if the request sets `parent_model`.
        return (
            f"the model {name} was created by another request during the training. Use "
            "another model_id, or set parent_model to that model to add a version to it. "
            "You can also upload the trained files from their directory."
        )
    return None


def fail(transition: WorkTransition[Pipeline], fault: str) -> None:
    """Fail a pipeline whose job succeeded but provides no model. `fault`: the reason from `model_fault`."""
    text = f"The training job succeeded, but {fault}"
    _end(transition, JobTrigger.FAILED, JobError(INVALID_ARGUMENT, text, cause="model"))


def model_name(pipeline: Pipeline, draft: ModelDraft) -> ModelName:
    """Return the name of the model that the pipeline will create."""
    return ModelName(pipeline.name.project_id, pipeline.name.location, draft.model_id)


def model_version(
    pipeline: Pipeline, uri: str, versions: tuple[ModelVersion, ...], now: Nanos
) -> ModelVersion:
    """Return the pipeline's model version. It follows `versions`, the existing versions of the model (newest
    first)."""
    draft = pipeline.spec.model
    assert draft is not None
    draft_json = json.loads(draft.public_json)
    aliases = draft.aliases
    if not versions and "default" not in aliases:
        aliases = ("default", *aliases)
    return ModelVersion(
        name=model_name(pipeline, draft),
        version=versions[0].version + 1 if versions else 1,
        display_name=draft.display_name,
        public_json=json.dumps(draft_json | {"artifactUri": uri}, ensure_ascii=False),
        artifact_uri=uri,
        created=now,
        updated=now,
        aliases=aliases,
        labels=draft.labels,
        pipeline=str(pipeline.name),
    )


def _end(transition: WorkTransition[Pipeline], trigger: JobTrigger, error: JobError | None) -> None:
    transition.fire_job(trigger)
    transition.change(error=error, ended=max(transition.now, transition.job.updated))
    message = error.message if error else "The pipeline has ended."
    kind = transition.job.state.value.lower()
    transition.record(TimelineEntry(transition.now, kind, message))
