"""The durable records of a training pipeline, of a version of a model, and of its evaluations.

Times are nanoseconds since the epoch; 0 = the moment has not come.
"""

import enum

from msgspec import Struct

from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle.actors import Actor
from trainshed.core.lifecycle.states import PipelineState
from trainshed.core.names import EvaluationName, JobName, JobUid, ModelName
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


class Pipeline(Struct, frozen=True):
    """A training pipeline. Moments in nanoseconds since the epoch, 0 = not yet."""

    uid: JobUid
    name: JobName
    display_name: str
    spec: PipelineSpec
    #: The pipeline in public JSON, as given.
    public_json: str
    created: Nanos
    updated: Nanos
    labels: tuple[tuple[str, str], ...] = ()
    state: PipelineState = PipelineState.QUEUED
    started: Nanos = 0
    ended: Nanos = 0
    error: JobError | None = None
    #: Its backing job; 0 = there is none yet.
    job: JobUid = JobUid(0)
    #: The custom job of the best trial of a tuning task; 0 = not known yet.
    best_job: JobUid = JobUid(0)
    #: `MODEL_NAME@VERSION` that it left; "" = none.
    model: str = ""
    #: When a cancel was accepted.
    cancelled: Nanos = 0
    #: Why it was; "" = it was not.
    cancel_message: str = ""
    #: The client that made it; None = it is not known.
    creator: Actor | None = None


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


class ModelExport(Struct, frozen=True):
    """A copy of a version's artifacts, with the rights that programs of the model's project have."""

    #: gs:// directory of the artifacts.
    source: str
    #: gs:// directory that the export makes; ends with a slash.
    output: str
    project: str
    #: Who asked for it.
    email: str
