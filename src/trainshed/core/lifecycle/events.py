"""What happened to a job (past tense), what must be done (imperative), what is told (timeline)."""

import enum
from dataclasses import dataclass, field
from typing import Any

from trainshed.core.capacity import Delay
from trainshed.core.failure.evidence import Cause
from trainshed.core.lifecycle.drills import Drill, DrillKind
from trainshed.core.lifecycle.replica_events import (
    ReplicaExited,
    ReplicaLost,
    ReplicaNoted,
    ReplicaStarted,
)
from trainshed.core.names import ReplicaId
from trainshed.core.units import Nanos


@dataclass(frozen=True, slots=True)
class JobAdmitted:
    """The scheduler gave the job capacity."""

    #: By replica.
    nodes: tuple[tuple[ReplicaId, str], ...]
    #: The one that it is for; 0 = whichever is next.
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class CapacityRefused:
    """There is no node on which the gang, or a part of it, could ever run: a stock-out."""

    #: What is missing.
    reason: str


@dataclass(frozen=True, slots=True)
class FellBack:
    """The scheduler has taken another of the job's choices for it."""

    #: Position in `JobSpec.choices`.
    choice: int
    #: Why not as before.
    reason: str


@dataclass(frozen=True, slots=True)
class Preempted:
    """The job has to give its capacity to another one."""

    #: That job's name.
    by: str


@dataclass(frozen=True, slots=True)
class RuntimePrepared:
    """Every environment the attempt needs is built and its packages are installed."""

    attempt: int
    #: Nanoseconds that it was waited for; 0 = all was there before.
    took: int = 0


@dataclass(frozen=True, slots=True)
class PreparationAdvanced:
    """What the attempt waits for goes on."""

    attempt: int
    #: The last that was heard of it.
    message: str
    #: Nanoseconds until now.
    took: int


@dataclass(frozen=True, slots=True)
class PreparationFailed:
    """The job's programs, or those that do not run yet, cannot be started."""

    attempt: int
    message: str
    #: PACKAGE or DATA, which are the user's, REJECTED, or SERVICE.
    cause: Cause


@dataclass(frozen=True, slots=True)
class StartDelayed:
    """Replicas of the attempt that have places cannot be started yet."""

    attempt: int
    delay: Delay


@dataclass(frozen=True, slots=True)
class NodesGiven:
    """The cluster has given replicas of the attempt other nodes than they were placed on."""

    attempt: int
    #: By replica.
    nodes: tuple[tuple[ReplicaId, str], ...]


@dataclass(frozen=True, slots=True)
class ReplicaPlaced:
    """A replica that had lost its place has another one, on `node`."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    node: str


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A node takes no work any more: what is placed on it has to leave."""

    node: str
    #: Why, in words.
    reason: str


@dataclass(frozen=True, slots=True)
class PauseOver:
    """A pause of the job's own ends: before a restart, or while notes are gathered."""

    #: Nanoseconds since the epoch, as are all `at` below.
    at: Nanos


class CancelCause(enum.StrEnum):
    """EARLY_STOP: the job's trial was told to stop early. PARENT: the tuning job or pipeline that made it is
    to end. IDLE: it did nothing for longer than the operator allows."""

    USER = "user"
    MAX_WAIT = "max_wait"
    TIMEOUT = "timeout"
    EARLY_STOP = "early_stop"
    PARENT = "parent"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A user, a limit or a parent wants the job to end."""

    cause: CancelCause
    #: When the request was accepted; a primary that exited before keeps its own outcome.
    at: Nanos


@dataclass(frozen=True, slots=True)
class DrillOrdered:
    """A user ordered a drill; its number is given by the job."""

    drill: Drill


@dataclass(frozen=True, slots=True)
class DrillTriggered:
    """What the drill waits for has come."""

    number: int
    at: Nanos


@dataclass(frozen=True, slots=True)
class DrillLanded:
    """The fault of a drill was handed to the replica, or there was nothing left to hit."""

    number: int


@dataclass(frozen=True, slots=True)
class LimitNears:
    """The job will meet its running limit in an hour."""

    at: Nanos


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """It is time to look whether the job writes checkpoints (spec/lifecycle#long-jobs)."""

    at: Nanos


@dataclass(frozen=True, slots=True)
class CheckpointLooked:
    """The job's bucket was looked at for checkpoints."""

    at: Nanos
    #: When it was last written to, nanoseconds since the epoch; 0 = never, -1 = it cannot be known.
    written: Nanos


Event = (
    JobAdmitted
    | CapacityRefused
    | FellBack
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
    | StartDelayed
    | NodesGiven
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
    """Allocate the gang's slots and start what has no process yet. Slots of earlier attempts are given back
    first."""

    attempt: int
    #: (replica, incarnation) of what is to start.
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
    attempt starts afterwards."""

    attempt: int
    #: (replica, incarnation) of which nobody knows yet whether they have started; they do not start either.
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
    """One line of the job's timeline, for people and programs."""

    at: Nanos
    #: A short stable word.
    kind: str
    message: str
    details: dict[str, Any] = field(default_factory=dict[str, Any])
