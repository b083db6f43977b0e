"""States and triggers of the state machines: job (with tuning job and pipeline), attempt, replica, operation.

The transitions between the states are in `core.lifecycle.transition`.
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
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class JobTrigger(enum.StrEnum):
    """The triggers that move a job from state to state."""

    #: An attempt got capacity.
    ADMITTED = "admitted"
    #: Every replica of the attempt runs or is over.
    ALL_UP = "all up"
    #: The attempt is given up for another one.
    RETRIED = "retried"
    #: A user or a limit ends the job.
    CANCEL_ACCEPTED = "cancel accepted"
    #: Its success is decided, and nothing of the job lives any more. The next two are alike.
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptState(enum.StrEnum):
    """States of a job's attempt."""

    #: No attempt has capacity: the first one, or the next one, waits for it.
    WAITING = "WAITING"
    #: It has capacity, and its environments are being built.
    PREPARING = "PREPARING"
    #: Its replicas may have processes.
    STARTING = "STARTING"
    #: There was a moment when each of its replicas ran or was over.
    RUNNING = "RUNNING"
    #: It is to end, for the next attempt or with the job, and something of it may live.
    STOPPING = "STOPPING"
    #: Nothing of it lives, and no other attempt will follow.
    OVER = "OVER"


class AttemptTrigger(enum.StrEnum):
    """The triggers that move an attempt from state to state."""

    #: It got capacity.
    ADMITTED = "admitted"
    #: Its environments are built.
    PREPARED = "prepared"
    #: Every replica of it runs or is over.
    ALL_UP = "all up"
    #: Its processes are to be stopped.
    END_DECIDED = "end decided"
    #: Nothing of it lives, and the next attempt follows in its capacity.
    RETRY_IN_PLACE = "retry in place"
    #: Nothing of it lives; its capacity is given back, and the next attempt waits for new.
    RETRY_LATER = "retry later"
    #: Nothing of it lives, and the job is over.
    ENDED = "ended"


class ReplicaState(enum.StrEnum):
    """States of one replica within an attempt."""

    #: Its incarnation has no process yet.
    WAITING = "WAITING"
    #: Its program was started.
    RUNNING = "RUNNING"
    #: It was asked to leave its node, and its end will not count as its program's own.
    STOPPING = "STOPPING"
    #: Its program ended, and the attempt record is sealed.
    EXITED = "EXITED"
    #: It is gone and left no record of how.
    LOST = "LOST"

    @property
    def is_over(self) -> bool:
        return self in (ReplicaState.EXITED, ReplicaState.LOST)


class ReplicaTrigger(enum.StrEnum):
    """The triggers that move a replica from state to state. RESTARTED: another incarnation is to follow."""

    STARTED = "started"
    ASKED_TO_LEAVE = "asked to leave"
    EXITED = "exited"
    LOST = "lost"
    RESTARTED = "restarted"


class OperationState(enum.StrEnum):
    """States of a long-running operation: `done` is false in the first."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        return self is not OperationState.RUNNING
