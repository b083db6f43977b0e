"""States and triggers of the state machines: job (also for tuning jobs and pipelines), attempt, replica,
operation.

`core.lifecycle.transition` defines the transitions between the states.
"""

import enum


class JobState(enum.StrEnum):
    """States of a job. The package `api` translates them for each public API (spec/lifecycle#states)."""

    QUEUED = "QUEUED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class JobTrigger(enum.StrEnum):
    """The triggers that change the state of a job."""

    #: An attempt received capacity.
    ADMITTED = "admitted"
    #: Every replica of the attempt runs or has ended.
    ALL_UP = "all up"
    #: The attempt is stopped for another attempt.
    RETRIED = "retried"
    #: A user or a limit cancels the job.
    CANCEL_ACCEPTED = "cancel accepted"
    #: The job's outcome is decided, and all of its replicas have ended. The triggers FAILED and CANCELLED
    #: have the same condition.
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptState(enum.StrEnum):
    """States of a job's attempt."""

    #: The attempt waits for capacity.
    WAITING = "WAITING"
    #: The attempt has capacity, and its environments are being built.
    PREPARING = "PREPARING"
    #: Replicas of the attempt may have processes.
    STARTING = "STARTING"
    #: At one moment, all replicas of the attempt were running or had ended.
    RUNNING = "RUNNING"
    #: The attempt is being stopped, for a retry or for the end of the job. Some replicas may still live.
    STOPPING = "STOPPING"
    #: All replicas have ended, and no other attempt follows.
    OVER = "OVER"


class AttemptTrigger(enum.StrEnum):
    """The triggers that change the state of an attempt."""

    #: The attempt received capacity.
    ADMITTED = "admitted"
    #: The attempt's environments are built.
    PREPARED = "prepared"
    #: Every replica of the attempt runs or has ended.
    ALL_UP = "all up"
    #: The processes of the attempt must be stopped.
    END_DECIDED = "end decided"
    #: All replicas have ended, and the next attempt uses the same capacity.
    RETRY_IN_PLACE = "retry in place"
    #: All replicas have ended. The capacity is released, and the next attempt waits for new capacity.
    RETRY_LATER = "retry later"
    #: All replicas have ended, and the job has finished.
    ENDED = "ended"


class ReplicaState(enum.StrEnum):
    """States of one replica within an attempt."""

    #: The replica's current run (incarnation) has no process yet.
    WAITING = "WAITING"
    #: The program was started.
    RUNNING = "RUNNING"
    #: The replica was requested to leave its node. Its end does not count as the program's own end.
    STOPPING = "STOPPING"
    #: The program ended, and the attempt record is complete.
    EXITED = "EXITED"
    #: The replica disappeared without a record of its end.
    LOST = "LOST"

    @property
    def is_over(self) -> bool:
        return self in (ReplicaState.EXITED, ReplicaState.LOST)


class ReplicaTrigger(enum.StrEnum):
    """The triggers that change the state of a replica. RESTARTED means that another run (incarnation) of the
    replica follows."""

    STARTED = "started"
    ASKED_TO_LEAVE = "asked to leave"
    EXITED = "exited"
    LOST = "lost"
    RESTARTED = "restarted"


class OperationState(enum.StrEnum):
    """States of a long-running operation. The public field `done` is false only in the first state."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        return self is not OperationState.RUNNING
