"""States and triggers of the five things that have a life: job, attempt, replica, pipeline, operation.

Which trigger leads from which state where is in `core.lifecycle.tables`.
"""

import enum


class JobState(enum.StrEnum):
    """States of a job; the package `api` spells them for each public surface (spec/lifecycle#states)."""

    QUEUED = "QUEUED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        return self in FINAL_STATES


FINAL_STATES = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


class JobTrigger(enum.StrEnum):
    """What moves a job on.

    ADMITTED: an attempt got capacity. ALL_UP: every replica of it runs. RETRIED: the attempt is given up for
    another one. CANCEL_ACCEPTED: a user or a time limit ends it. SUCCEEDED, FAILED, CANCELLED: decided, and
    nothing of it lives.
    """

    ADMITTED = "admitted"
    ALL_UP = "all up"
    RETRIED = "retried"
    CANCEL_ACCEPTED = "cancel accepted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptState(enum.StrEnum):
    """States of a job's attempt.

    WAITING: there is none with capacity, neither a first nor a next one. PREPARING: it has capacity, its
    environments are being built. STARTING: its replicas may have processes. RUNNING: all of them were up.
    STOPPING: it is to end, for the next attempt or with the job, and something of it may live. OVER: nothing
    of it lives, and none will follow.
    """

    WAITING = "WAITING"
    PREPARING = "PREPARING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    OVER = "OVER"


class AttemptTrigger(enum.StrEnum):
    """What moves an attempt on.

    END_DECIDED: its processes are to be stopped. AGAIN_HERE, AGAIN_LATER: nothing of it lives, and the next
    one follows in its place, or gives its capacity back and waits for new. ENDED: nothing of it lives, and
    the job is over.
    """

    ADMITTED = "admitted"
    PREPARED = "prepared"
    ALL_UP = "all up"
    END_DECIDED = "end decided"
    AGAIN_HERE = "again here"
    AGAIN_LATER = "again later"
    ENDED = "ended"


class ReplicaState(enum.StrEnum):
    """States of one replica within an attempt.

    WAITING: its incarnation has no process yet. RUNNING: its program was started. STOPPING: it was asked to
    leave its node, and its end will not count as its program's own. EXITED: its program ended and the attempt
    record is sealed. LOST: it is gone and left no record of how.
    """

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    EXITED = "EXITED"
    LOST = "LOST"

    @property
    def is_over(self) -> bool:
        return self in (ReplicaState.EXITED, ReplicaState.LOST)


class ReplicaTrigger(enum.StrEnum):
    """What moves a replica on. RESTARTED: another incarnation is to follow."""

    STARTED = "started"
    ASKED_TO_LEAVE = "asked to leave"
    EXITED = "exited"
    LOST = "lost"
    RESTARTED = "restarted"


class PipelineState(enum.StrEnum):
    """States of a training pipeline (facts/resources#pipelines); PAUSED is never entered here."""

    QUEUED = "QUEUED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        return self in (
            PipelineState.SUCCEEDED,
            PipelineState.FAILED,
            PipelineState.CANCELLED,
        )


class PipelineTrigger(enum.StrEnum):
    """What moves a pipeline on: what its backing job did, as far as the pipeline shows it.

    JOB_CREATED: its job is stored. JOB_RUNNING, JOB_RETRIED, JOB_SUCCEEDED, JOB_FAILED, JOB_CANCELLED: of
    that job. MODEL_FAILED: the job succeeded, its model could not be registered. CANCEL_ACCEPTED: of the
    pipeline itself.
    """

    JOB_CREATED = "job created"
    JOB_RUNNING = "job running"
    JOB_RETRIED = "job retried"
    CANCEL_ACCEPTED = "cancel accepted"
    JOB_SUCCEEDED = "job succeeded"
    JOB_FAILED = "job failed"
    JOB_CANCELLED = "job cancelled"
    MODEL_FAILED = "model failed"


class OperationState(enum.StrEnum):
    """States of a long-running operation: `done` is false in the first two."""

    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        return self not in (OperationState.RUNNING, OperationState.CANCELLING)


class OperationTrigger(enum.StrEnum):
    """What moves an operation on. STOPPED: its work ended because of a cancel."""

    CANCEL_ACCEPTED = "cancel accepted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
