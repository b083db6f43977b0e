"""States of jobs and replicas."""

import enum


class JobState(enum.StrEnum):
    """States of a job; the api room spells them for each public surface (SPEC §2)."""

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


class ReplicaState(enum.StrEnum):
    """States of one replica within an attempt.

    WAITING: no process yet. RUNNING: its program was started. EXITED: its program ended and the
    attempt record is sealed. LOST: it is gone and left no record of how.
    """

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    EXITED = "EXITED"
    LOST = "LOST"

    @property
    def is_over(self) -> bool:
        return self in (ReplicaState.EXITED, ReplicaState.LOST)
