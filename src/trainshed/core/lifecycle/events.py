"""What happened to a job (past tense), what must be done (imperative), what is told (timeline)."""

import enum
from dataclasses import dataclass, field
from typing import Any

from trainshed.core.job.exits import ExitRecord
from trainshed.core.lifecycle.drills import Drill, DrillKind
from trainshed.core.names import ReplicaId


@dataclass(frozen=True, slots=True)
class JobAdmitted:
    """The scheduler gave the job room: `nodes` by replica. `attempt`: the one that it is for, 0 = whichever
    is next."""

    nodes: tuple[tuple[ReplicaId, str], ...]
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class CapacityRefused:
    """There is no node on which the gang, or a part of it, could ever run: a stock-out. `reason` says what is
    missing."""

    reason: str


@dataclass(frozen=True, slots=True)
class Preempted:
    """The job has to give its room to another one. `by`: that job's name."""

    by: str


@dataclass(frozen=True, slots=True)
class RuntimePrepared:
    """Every environment the attempt needs is built and its packages are installed. `took`: ns that it was
    waited for, 0 = all was there before."""

    attempt: int
    took: int = 0


@dataclass(frozen=True, slots=True)
class PreparationAdvanced:
    """What the attempt waits for goes on: `message` is the last that was heard of it, after `took` ns."""

    attempt: int
    message: str
    took: int


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """The job's programs, or those that do not run yet, cannot be started. `by_user`: the job's own package
    is at fault."""

    attempt: int
    message: str
    by_user: bool


@dataclass(frozen=True, slots=True)
class ReplicaPlaced:
    """A replica that had lost its place has another one, on `node`."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    node: str


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A node takes no work any more: what is placed on it has to leave, for `reason`."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class PauseOver:
    """A pause of the job's own ends at `at`: before a restart, or while notes are gathered."""

    at: int


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


@dataclass(frozen=True, slots=True)
class ReplicaNoted:
    """A replica's program, or its shim, has something to say to people (spec/reduction#reports). `number`
    counts the incarnation's notes from 1; `name`: what kind of note it is; `severity`: INFO, WARNING or
    ERROR."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    number: int
    at: int
    name: str
    severity: str
    text: str


class CancelCause(enum.StrEnum):
    """EARLY_STOP: the job's trial was told to stop early. PARENT: the tuning job or pipeline that made it is
    to end."""

    USER = "user"
    MAX_WAIT = "max_wait"
    TIMEOUT = "timeout"
    EARLY_STOP = "early_stop"
    PARENT = "parent"


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """`at`: when the request was accepted; a primary that exited before keeps its own outcome."""

    cause: CancelCause
    at: int


@dataclass(frozen=True, slots=True)
class DrillOrdered:
    """A user ordered a drill; its number is given by the job."""

    drill: Drill


@dataclass(frozen=True, slots=True)
class DrillTriggered:
    """What the drill waits for has come."""

    number: int
    at: int


@dataclass(frozen=True, slots=True)
class DrillLanded:
    """The fault of a drill was handed to the replica, or there was nothing left to hit."""

    number: int


@dataclass(frozen=True, slots=True)
class LimitNears:
    """The job will meet its running limit in an hour."""

    at: int


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """It is time to look whether the job writes checkpoints (spec/lifecycle#long-jobs)."""

    at: int


@dataclass(frozen=True, slots=True)
class CheckpointLooked:
    """The job's bucket was last written to at `written` (0 = never, -1 = it cannot be known)."""

    at: int
    written: int


ReplicaEvent = ReplicaStarted | ReplicaExited | ReplicaLost | ReplicaNoted
"""What engines see of replicas."""

Event = (
    JobAdmitted
    | CapacityRefused
    | Preempted
    | ReplicaPlaced
    | NodeLeft
    | DrillOrdered
    | DrillTriggered
    | DrillLanded
    | LimitNears
    | CheckpointDue
    | CheckpointLooked
    | RuntimePrepared
    | PreparationAdvanced
    | PreparationFailed
    | PauseOver
    | ReplicaStarted
    | ReplicaExited
    | ReplicaLost
    | ReplicaNoted
    | CancelRequested
)


@dataclass(frozen=True, slots=True)
class PrepareRuntime:
    """Build the environments and install the packages of this attempt, then report."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StartReplicas:
    """Allocate the gang's slots and start these (replica, incarnation)s, which have no process yet. Slots of
    earlier attempts are given back first."""

    attempt: int
    waiting: tuple[tuple[ReplicaId, int], ...]


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Ask one replica to stop (SIGTERM, grace, SIGKILL); it reports its end."""

    attempt: int
    replica: ReplicaId
    incarnation: int


@dataclass(frozen=True, slots=True)
class StopReplicas:
    """Ask every living replica to stop (SIGTERM, grace, SIGKILL); each reports its end. Nothing of the
    attempt starts afterwards, of these (replica, incarnation)s neither, of which nobody knows yet whether
    they have started."""

    attempt: int
    waiting: tuple[tuple[ReplicaId, int], ...] = ()


@dataclass(frozen=True, slots=True)
class InjectFault:
    """Do to the replica what a drill orders, then report DrillLanded."""

    number: int
    kind: DrillKind
    attempt: int
    replica: ReplicaId
    incarnation: int


@dataclass(frozen=True, slots=True)
class DropReducers:
    """Tell the workers of the attempt, those that start later included, which reducers will not come back
    (spec/reduction#losses)."""

    attempt: int
    reducers: tuple[ReplicaId, ...]


@dataclass(frozen=True, slots=True)
class ReleaseSlots:
    """Give the slots of all attempts up to this one back; nothing of them lives."""

    attempt: int


Instruction = (
    PrepareRuntime
    | StartReplicas
    | StopReplica
    | StopReplicas
    | InjectFault
    | DropReducers
    | ReleaseSlots
)


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of the job's story, for people and programs. `kind` is a short stable word."""

    at: int
    kind: str
    message: str
    details: dict[str, Any] = field(default_factory=dict[str, Any])
