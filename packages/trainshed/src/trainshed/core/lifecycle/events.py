"""Events of a job (past tense), instructions for it (imperative), and the entries of its timeline."""

import enum
from typing import Any

from msgspec import Struct, field

from trainshed.core.capacity import Delay
from trainshed.core.failure.evidence import Cause
from trainshed.core.lifecycle.records import Actor, Drill, DrillKind
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

    #: The node of each replica.
    nodes: tuple[tuple[ReplicaId, str], ...]
    #: The attempt that it is for; None = whichever is next.
    attempt: int | None = None


class CapacityRefused(Struct, frozen=True):
    """There is no node on which the gang, or a part of it, could ever run: a stock-out."""

    #: The missing resource.
    reason: str


class Preempted(Struct, frozen=True):
    """The job has to give its capacity back."""

    #: The reason, in words that every reader of the job may see.
    reason: str
    #: BUDGET: a hard budget is used up.
    cause: Cause = Cause.PREEMPTED


class RuntimePrepared(Struct, frozen=True):
    """Every environment the attempt needs is built and its packages are installed."""

    attempt: int
    #: Nanoseconds that the attempt waited for it; 0 = all was there before.
    took: int = 0


class PreparationFailed(Struct, frozen=True):
    """The job's programs that do not run yet cannot be started."""

    attempt: int
    message: str
    #: PACKAGE or DATA, which are the user's fault; REJECTED; or SERVICE.
    cause: Cause


class StartDelayed(Struct, frozen=True):
    """Replicas of the attempt that have places cannot be started yet."""

    attempt: int
    delay: Delay


class NodesGiven(Struct, frozen=True):
    """The cluster has given replicas of the attempt other nodes than they were placed on."""

    attempt: int
    #: The new node of each of them.
    nodes: tuple[tuple[ReplicaId, str], ...]


class ReplicaPlaced(Struct, frozen=True):
    """A replica that had lost its place has another one, on `node`."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    node: str


class NodeLeft(Struct, frozen=True):
    """A node is no longer in use: the replicas on it have to leave."""

    node: str
    #: Why, in words.
    reason: str
    #: Replicas that run there and may stay: they may be well, and if they are lost, that will be reported.
    staying: tuple[ReplicaId, ...] = ()


class PauseOver(Struct, frozen=True):
    """A pause before a restart ends."""

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
    #: The trial that it runs was stopped early.
    EARLY_STOP = "early_stop"
    #: The tuning job or pipeline that made it is to end.
    PARENT = "parent"
    #: The job whose program made it is over.
    CREATOR = "creator"
    #: It did nothing for longer than the operator allows.
    IDLE = "idle"


class CancelRequested(Struct, frozen=True):
    """A user, a limit or a parent wants the job to end."""

    cause: CancelCause
    #: When the request was accepted; a primary that exited before keeps its own outcome.
    at: Nanos
    #: The user that cancelled it, or the finished job that created it; None = no particular actor.
    by: Actor | None = None


class DrillOrdered(Struct, frozen=True):
    """A user ordered a drill; the job's machine gives it its number."""

    drill: Drill


class DrillTriggered(Struct, frozen=True):
    """The log line or the moment that a drill waits for has come."""

    number: int
    at: Nanos


class DrillLanded(Struct, frozen=True):
    """The fault of a drill was handed to the replica, or there was nothing left to hit."""

    number: int


Event = (
    JobAdmitted
    | CapacityRefused
    | Preempted
    | ReplicaPlaced
    | NodeLeft
    | DrillOrdered
    | DrillTriggered
    | DrillLanded
    | RuntimePrepared
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
    """Allocate the gang's slots and start the replicas that have no process yet. Slots of earlier attempts
    are released first."""

    attempt: int
    #: (replica, incarnation) of each that is to start.
    waiting: tuple[tuple[ReplicaId, int], ...]


class StopReplica(Struct, frozen=True):
    """Ask one replica to stop (SIGTERM, grace, SIGKILL); it reports its end."""

    attempt: int
    replica: ReplicaId
    incarnation: int


class StopReplicas(Struct, frozen=True):
    """Ask every living replica to stop (SIGTERM, grace, SIGKILL); each reports its end. No replica of the
    attempt starts afterwards."""

    attempt: int
    #: (replica, incarnation) of each that is not known to have started; it must not start either.
    waiting: tuple[tuple[ReplicaId, int], ...] = ()


class InjectFault(Struct, frozen=True):
    """Inject a drill's fault into the replica, then report DrillLanded."""

    number: int
    kind: DrillKind
    attempt: int
    replica: ReplicaId
    incarnation: int


class ReleaseSlots(Struct, frozen=True):
    """Release the slots of all attempts up to this one; nothing of them lives."""

    attempt: int


Instruction = (
    PrepareRuntime | StartReplicas | StopReplica | StopReplicas | InjectFault | ReleaseSlots
)


class TimelineEntry(Struct, frozen=True):
    """One line of the job's timeline, for people and programs."""

    at: Nanos
    #: A short stable word.
    kind: str
    message: str
    details: dict[str, Any] = field(default_factory=dict[str, Any])
