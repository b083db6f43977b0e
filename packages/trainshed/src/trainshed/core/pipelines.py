"""Training pipelines: their durable records with the models that they leave, and what the backing job shows
leads to a pipeline's next state (facts/resources#pipelines). Pure.

A pipeline and its job are stored in one step, so that a pipeline never waits for its job. The model is
registered in the commit that ends the pipeline. Times are nanoseconds since the epoch; 0 = the moment has not
come.
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
    """The kind of the pipeline's job: a custom job, or a tuning job whose best trial gives the
    model."""

    CUSTOM = "custom_task"
    TUNING = "hyperparameter_tuning_task"


class ModelDraft(Struct, frozen=True):
    """The model that a pipeline is to leave."""

    #: Id of the model that is made, or that gets a new version.
    model_id: str
    display_name: str
    #: modelToUpload as given.
    public_json: str
    #: The gs:// directory of its files; None = the job's model directory.
    artifact_uri: str | None = None
    #: The model exists already (`parentModel`), and gets a new version.
    is_new_version: bool = False
    aliases: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


class PipelineSpec(Struct, frozen=True):
    """A valid training pipeline."""

    task: Task
    #: The gs:// directory below which its job leaves its model.
    output: str | None = None
    model: ModelDraft | None = None


class Pipeline(WorkRecord, frozen=True, kw_only=True):
    """A training pipeline, whose states are its job's. Only a cancel decides its outcome in
    advance."""

    spec: PipelineSpec
    #: Its backing job; 0 = there is none yet.
    job: JobUid = JobUid(0)
    #: The custom job of the best trial of a tuning task; 0 = not known yet.
    best_job: JobUid = JobUid(0)
    #: `MODEL_NAME@VERSION` that it left.
    model: str | None = None


class ModelVersion(Struct, frozen=True):
    """One version of a model. Moments in nanoseconds since the epoch."""

    name: ModelName
    #: Counts from 1.
    version: int
    display_name: str
    #: The model's input fields in public JSON.
    public_json: str
    artifact_uri: str
    created: Nanos
    updated: Nanos
    #: "default" is among them for exactly one version of each model.
    aliases: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    #: Name of the pipeline that trained it; None = it was uploaded.
    pipeline: str | None = None
    #: For an uploaded version: name of the job in whose output directory its artifacts lie, or whose program
    #: uploaded it; None = neither.
    job: str | None = None


class ModelEvaluation(Struct, frozen=True):
    """The quality of one version of a model, as a user imported it."""

    name: EvaluationName
    version: int
    #: The evaluation in public JSON, as given.
    public_json: str
    #: Nanoseconds since the epoch.
    created: Nanos


def created(pipeline: Pipeline, backing: Job | TuningJob) -> Pipeline:
    """Return the pipeline in its stored form, together with its job."""
    transition = WorkTransition(pipeline, pipeline.created)
    transition.change(job=backing.uid)
    transition.fire_job(JobTrigger.ADMITTED)
    return transition.job


def cancel(transition: WorkTransition[Pipeline], event: CancelRequested) -> None:
    """Accept a cancel; the running job is cancelled by the reconciler that looks at the pipeline next."""
    if not transition.job.state.is_final and transition.job.outcome is None:
        transition.cancel(event, f"The pipeline {job_timeline.cancelled_by(event)}")


def observe(transition: WorkTransition[Pipeline], backing: Job | TuningJob | None) -> None:
    """Apply what the backing job shows, except its success (`succeed`). `backing` None: it is gone."""
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
    """Return where the model of a job that succeeded must be: artifactUri, else the job's model directory,
    for a tuning task that of its best trial (facts/resources#trials)."""
    draft = pipeline.spec.model
    assert draft is not None
    if draft.artifact_uri:
        return draft.artifact_uri
    assert pipeline.spec.output is not None, "without it the model has an artifactUri"
    base = pipeline.spec.output.removesuffix("/")
    return f"{base}/{best_trial}/model" if pipeline.spec.task is Task.TUNING else f"{base}/model"


def succeed(
    transition: WorkTransition[Pipeline], version: ModelVersion | None, best_job: JobUid
) -> None:
    """End the pipeline because its job succeeded; its model, if one was asked for, is registered in the same
    commit. `best_job`: the job of the best trial of a tuning task, 0 = it was none."""
    version_name = f"{version.name}@{version.version}" if version else None
    transition.fire_job(JobTrigger.SUCCEEDED)
    at = max(transition.now, transition.job.updated)
    started = transition.job.started or at
    transition.change(model=version_name, best_job=best_job, started=started, ended=at)
    left = f" It uploaded the model {version_name}." if version_name else ""
    text, details = f"The pipeline succeeded.{left}", {"model": version_name or ""}
    transition.record(TimelineEntry(transition.now, "succeeded", text, details))


def model_fault(
    draft: ModelDraft,
    name: ModelName,
    uri: str,
    versions: tuple[ModelVersion, ...],
    *,
    is_there: bool,
) -> str | None:
    """Return why a successful job leaves no model; None = it leaves one. `versions`: the versions
    of the model with this name; `is_there`: whether an object exists at `uri`."""
    if not is_there:
        return (
            f"{uri} contains no model. The program must write its model to the directory in "
            "AIP_MODEL_DIR, or model_to_upload.artifact_uri must specify its location."
        )
    if draft.is_new_version and not versions:
        return f"{name}, the parent of the new model version, was deleted during the training."
    if versions and not draft.is_new_version:
        # The service adds a version to a model only on request.
        return (
            f"the model {name} was created by another request during the training. Use "
            "another model_id, or set parent_model to that model to add a version to it. "
            "You can also upload the trained files from their directory."
        )
    return None


def fail(transition: WorkTransition[Pipeline], fault: str) -> None:
    """End the pipeline because its job succeeded and leaves no model (`model_fault`)."""
    text = f"The training job succeeded, but {fault}"
    _end(transition, JobTrigger.FAILED, JobError(INVALID_ARGUMENT, text, cause="model"))


def model_name(pipeline: Pipeline, draft: ModelDraft) -> ModelName:
    """Return the name of the model that the pipeline is to leave."""
    return ModelName(pipeline.name.project_id, pipeline.name.location, draft.model_id)


def model_version(
    pipeline: Pipeline, uri: str, versions: tuple[ModelVersion, ...], now: Nanos
) -> ModelVersion:
    """Return the pipeline's version. It follows `versions`, the existing versions of the model
    (newest first)."""
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
