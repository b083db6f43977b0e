"""The durable records of a training pipeline and of a version of a model.

Times are nanoseconds since the epoch, 0 where the moment has not come.
"""

import enum
from dataclasses import dataclass

from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle.states import PipelineState
from trainshed.core.names import JobName, JobUid, ModelName


class Task(enum.StrEnum):
    """What the pipeline's job is: a custom job, or a tuning job whose best trial gives the model."""

    CUSTOM = "custom_task"
    TUNING = "hyperparameter_tuning_task"


@dataclass(frozen=True, slots=True)
class ModelDraft:
    """The model that a pipeline is to leave. `model_id`: of the model that is made, or that gets a new
    version. `is_new_version`: that model exists already (`parentModel`). `artifact_uri`: "" = the job's model
    directory. `public_json`: modelToUpload as given."""

    model_id: str
    display_name: str
    public_json: str
    artifact_uri: str = ""
    is_new_version: bool = False
    aliases: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """A valid training pipeline. `output`: the gs:// directory below which its job leaves its model ("" =
    none)."""

    task: Task
    output: str = ""
    model: ModelDraft | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A training pipeline. `job`: its backing job, `best_job` the custom job of the best trial of a tuning
    task (0 = not known yet). `model`: `MODEL_NAME@VERSION` that it left ("" = none). `cancelled`: when a
    cancel was accepted."""

    uid: JobUid
    name: JobName
    display_name: str
    spec: PipelineSpec
    public_json: str
    created: int
    updated: int
    labels: tuple[tuple[str, str], ...] = ()
    state: PipelineState = PipelineState.QUEUED
    started: int = 0
    ended: int = 0
    error: JobError | None = None
    job: JobUid = JobUid(0)
    best_job: JobUid = JobUid(0)
    model: str = ""
    cancelled: int = 0


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a model; `version` counts from 1. `aliases`: "default" among them for exactly one
    version of each model. `public_json`: the model's input fields in public JSON. `pipeline`: name of what
    trained it ("" = uploaded)."""

    name: ModelName
    version: int
    display_name: str
    public_json: str
    artifact_uri: str
    created: int
    updated: int
    aliases: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    pipeline: str = ""
