"""What happened to a job (past tense), what must be done (imperative), what is told (timeline)."""

import enum
from typing import Any

from msgspec import Struct, field

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


class JobAdmitted(Struct, frozen=True):
    """The scheduler gave the job capacity."""

    #: By replica.
    nodes: tuple[tuple[ReplicaId, str], ...]
    #: The one that it is for; 0 = whichever is next.
    attempt: int = 0


class CapacityRefused(Struct, frozen=True):
    """There is no node on which the gang, or a part of it, could ever run: a stock-out."""

    #: What is missing.
    reason: str


class FellBack(Struct, frozen=True):
    """The scheduler has taken another of the job's choices for it."""

    #: Position in `JobSpec.choices`.
    choice: int
    #: Why not as before.
    reason: str


class Preempted(Struct, frozen=True):
    """The job has to give its capacity to another one."""

    #: That job's name.
    by: str


class RuntimePrepared(Struct, frozen=True):
    """Every environment the attempt needs is built and its packages are installed."""

    attempt: int
    #: Nanoseconds that it was waited for; 0 = all was there before.
    took: int = 0


class PreparationAdvanced(Struct, frozen=True):
    """What the attempt waits for goes on."""

    attempt: int
    #: The last that was heard of it.
    message: str
    #: Nanoseconds until now.
    took: int


class PreparationFailed(Struct, frozen=True):
    """The job's programs, or those that do not run yet, cannot be started."""

    attempt: int
    message: str
    #: PACKAGE or DATA, which are the user's, REJECTED, or SERVICE.
    cause: Cause


class StartDelayed(Struct, frozen=True):
    """Replicas of the attempt that have places cannot be started yet."""

    attempt: int
    delay: Delay


class NodesGiven(Struct, frozen=True):
    """The cluster has given replicas of the attempt other nodes than they were placed on."""

    attempt: int
    #: By replica.
    nodes: tuple[tuple[ReplicaId, str], ...]


class ReplicaPlaced(Struct, frozen=True):
    """A replica that had lost its place has another one, on `node`."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    node: str


class NodeLeft(Struct, frozen=True):
    """A node takes no work any more: what is placed on it has to leave."""

    node: str
    #: Why, in words.
    reason: str
    #: What runs there and may stay: it may be well, and whoever hears it tells if it is lost.
    staying: tuple[ReplicaId, ...] = ()


class PauseOver(Struct, frozen=True):
    """A pause of the job's own ends: before a restart, or while notes are gathered."""

    #: Nanoseconds since the epoch, as are all `at` below.
    at: Nanos


class CancelCause(enum.StrEnum):
    """Why a job is to end before its program does."""

    #: A user cancelled it.
    USER = "user"
    #: It waited for capacity as long as it may.
    MAX_WAIT = "max_wait"
    #: It ran as long as it may.
    TIMEOUT = "timeout"
    #: The trial that it runs was told to stop early.
    EARLY_STOP = "early_stop"
    #: The tuning job or pipeline that made it is to end.
    PARENT = "parent"
    #: It did nothing for longer than the operator allows.
    IDLE = "idle"


class CancelRequested(Struct, frozen=True):
    """A user, a limit or a parent wants the job to end."""

    cause: CancelCause
    #: When the request was accepted; a primary that exited before keeps its own outcome.
    at: Nanos


class DrillOrdered(Struct, frozen=True):
    """A user ordered a drill; its number is given by the job."""

    drill: Drill


class DrillTriggered(Struct, frozen=True):
    """What the drill waits for has come."""

    number: int
    at: Nanos


class DrillLanded(Struct, frozen=True):
    """The fault of a drill was handed to the replica, or there was nothing left to hit."""

    number: int


class LimitNears(Struct, frozen=True):
    """The job will meet its running limit in an hour."""

    at: Nanos


class CheckpointDue(Struct, frozen=True):
    """It is time to look whether the job writes checkpoints (spec/lifecycle#long-jobs)."""

    at: Nanos


class CheckpointLooked(Struct, frozen=True):
    """The job's bucket was looked at for checkpoints."""

    at: Nanos
    #: When it was last written to, nanoseconds since the epoch; 0 = never, None = it cannot be known.
    written: Nanos | None


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


class PrepareRuntime(Struct, frozen=True):
    """Build the environments and install the packages of this attempt, then report."""

    attempt: int


class StartReplicas(Struct, frozen=True):
    """Allocate the gang's slots and start what has no process yet. Slots of earlier attempts are given back
    first."""

    attempt: int
    #: (replica, incarnation) of what is to start.
    waiting: tuple[tuple[ReplicaId, int], ...]


class StopReplica(Struct, frozen=True):
    """Ask one replica to stop (SIGTERM, grace, SIGKILL); it reports its end."""

    attempt: int
    replica: ReplicaId
    incarnation: int


class StopReplicas(Struct, frozen=True):
    """Ask every living replica to stop (SIGTERM, grace, SIGKILL); each reports its end. Nothing of the
    attempt starts afterwards."""

    attempt: int
    #: (replica, incarnation) of which nobody knows yet whether they have started; they do not start either.
    waiting: tuple[tuple[ReplicaId, int], ...] = ()


class InjectFault(Struct, frozen=True):
    """Do to the replica what a drill orders, then report DrillLanded."""

    number: int
    kind: DrillKind
    attempt: int
    replica: ReplicaId
    incarnation: int


class DropReducers(Struct, frozen=True):
    """Tell the workers of the attempt, those that start later included, which reducers will not come back
    (spec/reduction#losses)."""

    attempt: int
    reducers: tuple[ReplicaId, ...]


class ReleaseSlots(Struct, frozen=True):
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


class TimelineEntry(Struct, frozen=True):
    """One line of the job's timeline, for people and programs."""

    at: Nanos
    #: A short stable word.
    kind: str
    message: str
    details: dict[str, Any] = field(default_factory=dict[str, Any])
