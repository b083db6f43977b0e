"""The records of a pipeline job's tasks: their states, their inputs and outputs, and their jobs.

Times are nanoseconds since the epoch. 0 means that the event has not happened.
"""

import enum
from collections.abc import Mapping

from msgspec import Struct

from trainshed.core.job import JobError
from trainshed.core.names import Collection, JobUid
from trainshed.core.units import Nanos
from trainshed_pipelines.template.structures import ArtifactType, Json


class TaskState(enum.StrEnum):
    """The state of a task (facts/pipelines#states). The values are the public names, except WAITING,
    which the public API reports as PENDING."""

    #: Upstream tasks have not ended, or a pause before a retry has not ended.
    WAITING = "WAITING"
    #: The task's job is stored and waits for capacity.
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    #: The task's job receives a cancel.
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    #: The task uses the outputs of an earlier run (cache).
    SKIPPED = "SKIPPED"
    #: The condition is false, or upstream tasks did not succeed.
    NOT_TRIGGERED = "NOT_TRIGGERED"

    @property
    def is_final(self) -> bool:
        return self in _FINAL

    @property
    def is_successful(self) -> bool:
        """Return whether the task has outputs that other tasks can use."""
        return self in (TaskState.SUCCEEDED, TaskState.SKIPPED)


_FINAL = frozenset(
    {TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.SKIPPED, TaskState.NOT_TRIGGERED}
)


class Artifact(Struct, frozen=True):
    """An artifact that tasks read and write."""

    #: Full name of the artifact in the metadata store, or "" before it is stored.
    name: str
    type: ArtifactType
    #: `gs://` URI, or an address that an importer task has read.
    uri: str
    metadata: Mapping[str, Json] = {}
    display_name: str = ""


class Values(Struct, frozen=True):
    """The inputs or outputs of a task, by key. A missing optional input has no entry."""

    parameters: Mapping[str, Json] = {}
    artifacts: Mapping[str, tuple[Artifact, ...]] = {}


class TaskKind(enum.StrEnum):
    """The kind of work that a task does."""

    #: It runs the tasks of a DAG.
    DAG = "dag"
    #: It runs iterations of a component.
    LOOP = "loop"
    #: It runs a program, as a job.
    JOB = "job"
    #: It imports an artifact.
    IMPORTER = "importer"
    #: The service carries it out: a training component of Google Cloud Pipeline Components.
    NATIVE = "native"


ROOT = 0
"""The number of the task that runs the pipeline's own DAG."""


class TaskRun(Struct, frozen=True, kw_only=True):
    """One task of a pipeline job, or one iteration of a loop."""

    #: Number of the task within its pipeline job. The number of a task is larger than its parent's.
    number: int
    #: Number of the DAG or loop that contains the task. The parent of `ROOT` is itself.
    parent: int = ROOT
    #: The key of the task in its DAG. An iteration has the key of its loop. "" for `ROOT`.
    name: str = ""
    #: The task's component in the template.
    component: str
    kind: TaskKind
    #: Index of an iteration in its loop, from 0. -1 for all other tasks.
    iteration: int = -1
    state: TaskState = TaskState.WAITING
    created: Nanos
    started: Nanos = Nanos(0)
    ended: Nanos = Nanos(0)
    inputs: Values = Values()
    outputs: Values = Values()
    #: The job of the current attempt, or 0 without a job.
    job: JobUid = JobUid(0)
    #: The collection of the task's jobs: custom jobs or tuning jobs.
    collection: Collection = Collection.CUSTOM_JOBS
    #: The jobs of earlier attempts, which failed.
    failed_jobs: tuple[JobUid, ...] = ()
    #: Earliest start of the next attempt, or 0 without a pause.
    not_before: Nanos = Nanos(0)
    error: JobError | None = None
    #: Fingerprint of program and inputs for the cache, or "" if the task is not cached.
    fingerprint: str = ""
    #: The task whose outputs were used instead of a run: `PIPELINE_JOB_NAME#NUMBER`. "" = the task ran.
    cached_from: str = ""
    #: Number of iterations of a loop. 0 for other tasks.
    iterations: int = 0
    #: The task's execution in the metadata store, or "" without one.
    execution: str = ""
