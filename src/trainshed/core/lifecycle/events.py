"""What happened to a job (past tense), what must be done (imperative), what is told (timeline)."""

import enum
from dataclasses import dataclass, field
from typing import Any

from trainshed.core.lifecycle.records import ExitRecord
from trainshed.core.names import ReplicaId


@dataclass(frozen=True, slots=True)
class JobAdmitted:
    """The scheduler gave the job room: `nodes` by replica."""

    nodes: tuple[tuple[ReplicaId, str], ...]


@dataclass(frozen=True, slots=True)
class RuntimePrepared:
    """Every environment the attempt needs is built and its packages are installed."""

    attempt: int


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """The job's programs, or those that do not run yet, cannot be started. `by_user`: the job's own package is
    at fault."""

    attempt: int
    message: str
    by_user: bool


@dataclass(frozen=True, slots=True)
class ReplicaStarted:
    attempt: int
    replica: ReplicaId
    incarnation: int
    at: int


@dataclass(frozen=True, slots=True)
class ReplicaExited:
    """The replica's main process ended and its log and attempt record are sealed."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    exit: ExitRecord


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """The replica is gone without an attempt record, or never came up and never will.

    `by_service`: because the service itself failed.
    """

    attempt: int
    replica: ReplicaId
    incarnation: int
    cause: str
    by_service: bool = False


class CancelCause(enum.StrEnum):
    USER = "user"
    MAX_WAIT = "max_wait"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """`at`: when the request was accepted; a primary that exited before keeps its own outcome."""

    cause: CancelCause
    at: int


Event = (
    JobAdmitted
    | RuntimePrepared
    | PreparationFailed
    | ReplicaStarted
    | ReplicaExited
    | ReplicaLost
    | CancelRequested
)


@dataclass(frozen=True, slots=True)
class PrepareRuntime:
    """Build the environments and install the packages of this attempt, then report."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StartReplicas:
    """Allocate the gang's slots and start every replica that has no process yet."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StopReplicas:
    """Ask every living replica to stop (SIGTERM, grace, SIGKILL); each reports its end."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ReleaseSlots:
    """Give the gang's slots back. The job is over."""

    attempt: int


Instruction = PrepareRuntime | StartReplicas | StopReplicas | ReleaseSlots


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of the job's story, for people and programs. `kind` is a short stable word."""

    at: int
    kind: str
    message: str
    details: dict[str, Any] = field(default_factory=dict[str, Any])
