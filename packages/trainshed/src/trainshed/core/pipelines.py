"""Training pipelines: their durable records with the models that they leave, and what the backing job shows
leads to a pipeline's next state (facts/resources#pipelines). Pure.

A pipeline and its job are stored in one step, so that a pipeline never waits for its job. The model is
registered in the commit that ends the pipeline. Times are nanoseconds since the epoch; 0 = the moment has not
come.
"""

import enum
import json

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.failure.messages import CANCELLED, INVALID_ARGUMENT
from trainshed.core.job import JobError
from trainshed.core.lifecycle import tables
from trainshed.core.lifecycle import timeline as job_timeline
from trainshed.core.lifecycle.events import CancelRequested, TimelineEntry
from trainshed.core.lifecycle.machine import give_up_parent
from trainshed.core.lifecycle.records import Job, Outcome, WorkRecord
from trainshed.core.lifecycle.states import JobState, JobTrigger
from trainshed.core.names import EvaluationName, JobUid, ModelName
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import Nanos


class Task(enum.StrEnum):
    """What the pipeline's job is: a custom job, or a tuning job whose best trial gives the model."""

    CUSTOM = "custom_task"
    TUNING = "hyperparameter_tuning_task"


class ModelDraft(Struct, frozen=True):
    """The model that a pipeline is to leave."""

    #: Id of the model that is made, or that gets a new version.
    model_id: str
    display_name: str
    #: modelToUpload as given.
    public_json: str
    #: The gs:// directory of its files; "" = the job's model directory.
    artifact_uri: str = ""
    #: The model exists already (`parentModel`), and gets a new version.
    is_new_version: bool = False
    aliases: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


class PipelineSpec(Struct, frozen=True):
    """A valid training pipeline. `output`: the gs:// directory below which its job leaves its model ("" =
    none)."""

    task: Task
    output: str = ""
    model: ModelDraft | None = None


class Pipeline(WorkRecord, frozen=True, kw_only=True):
    """A training pipeline, whose states are its job's. Its outcome is decided ahead by a cancel alone."""

    spec: PipelineSpec
    #: Its backing job; 0 = there is none yet.
    job: JobUid = JobUid(0)
    #: The custom job of the best trial of a tuning task; 0 = not known yet.
    best_job: JobUid = JobUid(0)
    #: `MODEL_NAME@VERSION` that it left; "" = none.
    model: str = ""


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
    #: Name of the pipeline that trained it; "" = it was uploaded.
    pipeline: str = ""
    #: For an uploaded version: name of the job in whose output directory its artifacts lie, or whose program
    #: uploaded it; "" = neither.
    job: str = ""


class ModelEvaluation(Struct, frozen=True):
    """How good one version of a model is, as somebody has imported it."""

    name: EvaluationName
    version: int
    #: The evaluation in public JSON, as given.
    public_json: str
    #: Nanoseconds since the epoch.
    created: Nanos


Told = tuple[TimelineEntry, ...]


def created(pipeline: Pipeline, backing: Job | TuningJob) -> Pipeline:
    """Return the pipeline as it is stored, together with its job."""
    return _goes(replace(pipeline, job=backing.uid), JobTrigger.ADMITTED)


def cancelled(pipeline: Pipeline, event: CancelRequested) -> tuple[Pipeline, Told]:
    """Accept a cancel; the running job is cancelled by the reconciler that looks at the pipeline next."""
    if pipeline.state.is_final or pipeline.outcome is not None:
        return pipeline, ()
    message = f"The pipeline {job_timeline.cancelled_by(event)}"
    error = JobError(CANCELLED, message, cause="cancelled")
    changed = replace(
        _goes(pipeline, JobTrigger.CANCEL_ACCEPTED),
        outcome=Outcome(JobState.CANCELLED, f"cancelled_{event.cause}", error, event.at),
        updated=max(event.at, pipeline.updated),
    )
    return changed, (job_timeline.cancel_requested(event, message),)


def observed(
    pipeline: Pipeline, backing: Job | TuningJob | None, now: Nanos
) -> tuple[Pipeline, Told]:
    """Apply what the backing job shows, except its success (`succeeded`). `backing` None: it is gone."""
    if pipeline.state.is_final:
        return pipeline, ()
    if backing is None:
        error = JobError(INVALID_ARGUMENT, "The pipeline's job is gone or unreadable.")
        return _ends(pipeline, JobTrigger.FAILED, error, now)
    if backing.started and not pipeline.started:
        pipeline = replace(pipeline, started=backing.started)
    match backing.state:
        case JobState.RUNNING:
            changed = _goes(pipeline, JobTrigger.ALL_UP)
            if changed.state is pipeline.state:
                return changed, ()
            entry = TimelineEntry(now, "running", f"{backing.name} is running.")
            return replace(changed, updated=_at(pipeline, now)), (entry,)
        case JobState.PREPARING if backing.started:
            changed = _goes(pipeline, JobTrigger.RETRIED)
            return (
                changed if changed == pipeline else replace(changed, updated=_at(pipeline, now))
            ), ()
        case JobState.FAILED:
            return _ends(pipeline, JobTrigger.FAILED, backing.error, now)
        case JobState.CANCELLED:
            why = f": {backing.error.message}" if backing.error else "."
            message = f"Its job {backing.name} was cancelled{why}"
            error = JobError(CANCELLED, message, cause="cancelled")
            if pipeline.outcome is not None:
                error = pipeline.outcome.error
            pipeline = _goes(pipeline, JobTrigger.CANCEL_ACCEPTED)
            return _ends(pipeline, JobTrigger.CANCELLED, error, now)
        case _:
            return pipeline, ()


def artifacts(pipeline: Pipeline, best_trial: int) -> str:
    """Return where the model of a job that succeeded must be: artifactUri, else the job's model directory,
    for a tuning task that of its best trial (facts/resources#trials)."""
    draft = pipeline.spec.model
    assert draft is not None
    if draft.artifact_uri:
        return draft.artifact_uri
    base = pipeline.spec.output.removesuffix("/")
    return f"{base}/{best_trial}/model" if pipeline.spec.task is Task.TUNING else f"{base}/model"


def succeeded(
    pipeline: Pipeline, version: ModelVersion | None, best_job: JobUid, now: Nanos
) -> tuple[Pipeline, Told]:
    """End the pipeline because its job succeeded; its model, if one was asked for, is registered in the same
    commit. `best_job`: the job of the best trial of a tuning task, 0 = it was none."""
    version_name = f"{version.name}@{version.version}" if version else ""
    done = replace(pipeline, model=version_name, best_job=best_job)
    ended = _goes(done, JobTrigger.SUCCEEDED)
    left = f" It left the model {version_name}." if version_name else ""
    entry = TimelineEntry(
        now, "succeeded", f"The pipeline succeeded.{left}", {"model": version_name}
    )
    at = _at(pipeline, now)
    return replace(ended, ended=at, updated=at, started=ended.started or at), (entry,)


def model_missing(pipeline: Pipeline, uri: str, now: Nanos) -> tuple[Pipeline, Told]:
    """End the pipeline because its job succeeded and left nothing where the model should be."""
    return _model_failed(
        pipeline,
        f"there is no model at {uri}: the program must write its model to the directory that AIP_MODEL_DIR "
        "names, or model_to_upload.artifact_uri must say where it is.",
        now,
    )


def parent_model_missing(pipeline: Pipeline, name: ModelName, now: Nanos) -> tuple[Pipeline, Told]:
    """End the pipeline because the model that was to get a new version does not exist any more."""
    why = f"{name}, which was to get its model as a new version, was deleted meanwhile."
    return _model_failed(pipeline, why, now)


def model_taken(pipeline: Pipeline, name: ModelName, now: Nanos) -> tuple[Pipeline, Told]:
    """End the pipeline because somebody else has made a model of the name that this one was to have: that
    model gets no version that nobody asked for."""
    return _model_failed(
        pipeline,
        f"{name}, which was to be made of what it left, was made by somebody else meanwhile. Name another "
        "model_id, or that model as the parent_model, to which this one adds a version; or upload what was "
        "trained from its directory.",
        now,
    )


def _model_failed(pipeline: Pipeline, why: str, now: Nanos) -> tuple[Pipeline, Told]:
    text = f"The training job succeeded, but {why}"
    error = JobError(INVALID_ARGUMENT, text, cause="model")
    return _ends(pipeline, JobTrigger.FAILED, error, now)


def model_version(
    pipeline: Pipeline, uri: str, versions: tuple[ModelVersion, ...], now: Nanos
) -> ModelVersion:
    """Return the version that the pipeline leaves, which follows `versions`, those that the model has (newest
    first)."""
    draft = pipeline.spec.model
    assert draft is not None
    name = ModelName(pipeline.name.project_id, pipeline.name.location, draft.model_id)
    draft_json = json.loads(draft.public_json)
    aliases = draft.aliases
    if not versions and "default" not in aliases:
        aliases = ("default", *aliases)
    return ModelVersion(
        name=name,
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


def given_up(pipeline: Pipeline, cause: str, now: Nanos) -> tuple[Pipeline, Told]:
    """End the pipeline because the service fails each time it looks at it; its job is to be cancelled."""
    return give_up_parent(pipeline, "Pipeline", cause, now)


def _at(pipeline: Pipeline, now: Nanos) -> Nanos:
    """Return the time of a change: not before the last one, though the clock was set back."""
    return max(now, pipeline.updated)


def _ends(
    pipeline: Pipeline, trigger: JobTrigger, error: JobError | None, now: Nanos
) -> tuple[Pipeline, Told]:
    at = _at(pipeline, now)
    ended = replace(_goes(pipeline, trigger), error=error, ended=at, updated=at)
    message = error.message if error else "The pipeline is over."
    return ended, (TimelineEntry(now, ended.state.value.lower(), message),)


def _goes(pipeline: Pipeline, trigger: JobTrigger) -> Pipeline:
    timeline = (f"pipeline {pipeline.uid} ({pipeline.name}): {pipeline.state}",)
    state = tables.JOB.fire(pipeline.state, trigger, timeline)
    return pipeline if state is None else replace(pipeline, state=state)
