"""Events of a job (named in the past tense), instructions for a job (imperative), and entries of its
timeline."""

import enum
from typing import Any

from msgspec import Struct, field

from trainshed.core.capacity import Delay
from trainshed.core.failure.evidence import Cause
from trainshed.core.lifecycle.records import Actor, Drill, DrillKind
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost, ReplicaNoted, ReplicaStarted
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.units import Nanos


class JobAdmitted(Struct, frozen=True):
    """The scheduler gave the job capacity."""

    #: The node of each replica.
    nodes: tuple[tuple[ReplicaId, str], ...]
    #: The number of the admitted attempt, or None for the next attempt.
    attempt: int | None = None


class CapacityRefused(Struct, frozen=True):
    """No set of nodes can ever run the gang or a part of it: a stock-out."""

    #: The missing resource.
    reason: str


class Preempted(Struct, frozen=True):
    """The scheduler requires the job to release its capacity."""

    #: The human-readable reason, without secrets: every reader of the job can see it.
    reason: str
    #: BUDGET if a hard budget is used up, otherwise PREEMPTED.
    cause: Cause = Cause.PREEMPTED


class RuntimePrepared(Struct, frozen=True):
    """All environments of the attempt are built, including the packages of the job."""

    attempt: int
    #: Nanoseconds that the attempt waited for its environments, or 0 if they already existed.
    took: int = 0


class PreparationFailed(Struct, frozen=True):
    """Programs of the job that have not started cannot be started."""

    attempt: int
    message: str
    #: PACKAGE and DATA are errors of the user. For all other errors, the cause is REJECTED or SERVICE.
    cause: Cause


class StartDelayed(Struct, frozen=True):
    """Replicas of the attempt that have nodes cannot start yet."""

    attempt: int
    delay: Delay


class NodesGiven(Struct, frozen=True):
    """The cluster has moved replicas of the attempt to other nodes than the scheduler planned."""

    attempt: int
    #: The new node of each moved replica.
    nodes: tuple[tuple[ReplicaId, str], ...]


class ReplicaPlaced(Struct, frozen=True):
    """A replica without a node has been placed on `node`."""

    attempt: int
    replica: ReplicaId
    incarnation: int
    node: str


class NodeLeft(Struct, frozen=True):
    """The service no longer uses a node, so its replicas must leave the node."""

    node: str
    #: The human-readable reason.
    reason: str
    #: Running replicas that continue on the node, because they may still work. If such a replica is lost, its
    #: engine reports the loss separately.
    staying: tuple[ReplicaId, ...] = ()


class PauseOver(Struct, frozen=True):
    """The pause before a restart has ended."""

    #: Time of the event in nanoseconds since the epoch. All `at` fields below have the same unit.
    at: Nanos


class CancelCause(enum.StrEnum):
    """Why a job is cancelled."""

    #: A user cancelled the job.
    USER = "user"
    #: The job reached its maximum waiting time.
    MAX_WAIT = "max_wait"
    #: The job reached its maximum running time.
    TIMEOUT = "timeout"
    #: The job's trial was stopped early.
    EARLY_STOP = "early_stop"
    #: The job's tuning job or pipeline is ending.
    PARENT = "parent"
    #: The job whose program created this job has finished.
    CREATOR = "creator"
    #: The job was idle for longer than the operator allows.
    IDLE = "idle"


class CancelRequested(Struct, frozen=True):
    """A user, a limit, or the tuning job or pipeline that runs the job has requested the job's end."""

    cause: CancelCause
    #: When the request was accepted. A primary that exited earlier keeps its own outcome.
    at: Nanos
    #: The user who cancelled the job, or the finished job that created it. None without a particular actor.
    by: Actor | None = None


class DrillOrdered(Struct, frozen=True):
    """A user ordered a drill, a fault in the job. `step` assigns the drill's number."""

    drill: Drill


class DrillTriggered(Struct, frozen=True):
    """The condition of a drill (an ordered fault) is met: its log line was written, or its replica has
    started."""

    number: int
    at: Nanos


class DrillLanded(Struct, frozen=True):
    """The engine has injected the fault of a drill (a test that the user ordered), or the replica had already
    ended."""

    number: int


class DependencyEnded(Struct, frozen=True):
    """A job that this job waits for has finished."""

    uid: JobUid
    #: The final state of the finished job, or None if it was deleted.
    state: JobState | None


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
    | DependencyEnded
)


class PrepareRuntime(Struct, frozen=True):
    """Build the environments and install the packages of this attempt, then report the result."""

    attempt: int


class StartReplicas(Struct, frozen=True):
    """Allocate the slots (positions on nodes) of the gang's replicas, and start the replicas that have no
    process. Slots of earlier attempts are released first."""

    attempt: int
    #: Each replica to start, with the number of its run (incarnation).
    waiting: tuple[tuple[ReplicaId, int], ...]


class StopReplica(Struct, frozen=True):
    """Stop one replica (SIGTERM, grace period, SIGKILL). The engine reports its end."""

    attempt: int
    replica: ReplicaId
    incarnation: int


class StopReplicas(Struct, frozen=True):
    """Stop every live replica (SIGTERM, grace period, SIGKILL). The engine reports the end of each. No
    replica of the attempt starts afterwards."""

    attempt: int
    #: Each replica that may not have started yet, with the number of its run (incarnation). These runs must
    #: never start.
    waiting: tuple[tuple[ReplicaId, int], ...] = ()


class InjectFault(Struct, frozen=True):
    """Inject the fault of a drill (ordered by a user) into the replica, then report DrillLanded."""

    number: int
    kind: DrillKind
    attempt: int
    replica: ReplicaId
    incarnation: int


class ReleaseSlots(Struct, frozen=True):
    """Release the slots (positions on nodes) of the replicas of all attempts up to this one. These replicas
    have ended."""

    attempt: int


Instruction = PrepareRuntime | StartReplicas | StopReplica | StopReplicas | InjectFault | ReleaseSlots


class TimelineEntry(Struct, frozen=True):
    """One entry of the job's timeline, for users and programs."""

    at: Nanos
    #: A short stable identifier of the entry's kind.
    kind: str
    message: str
    details: dict[str, Any] = field(default_factory=dict[str, Any])
