"""The durable record of a job: what is stored, and all that the machine decides from.

Times are nanoseconds since the epoch, 0 where the moment has not come.
"""

from dataclasses import dataclass

from trainshed.core.failure.rules import Counters
from trainshed.core.job.exits import ExitRecord, JobError
from trainshed.core.job.spec import JobSpec
from trainshed.core.lifecycle.drills import Drill
from trainshed.core.lifecycle.states import AttemptState, JobState, ReplicaState
from trainshed.core.names import JobName, JobUid, ReplicaId


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of the current attempt. `incarnation` fences: at most one of them lives.

    `node` "": it has no place, and waits for one. `leaving`: why it was asked to leave its node ("" = it was not).
    `restarts`: in this attempt, by rule; `recent`: when the last ones were, for rules with a limit of rate.
    `avoid`: the node that it had to leave, or that it was lost with. `notes`: how many of this incarnation's are told.
    `not_before`: it is not started earlier, 0 = it may be.
    """

    id: ReplicaId
    state: ReplicaState = ReplicaState.WAITING
    incarnation: int = 1
    node: str = ""
    started: int = 0
    exit: ExitRecord | None = None
    leaving: str = ""
    restarts: Counters = ()
    recent: tuple[int, ...] = ()
    avoid: str = ""
    notes: int = 0
    not_before: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """What a replica's program, or its shim, has said of its part in a reduction or of its storage calls, as `ReplicaNoted`
    brought it."""

    replica: ReplicaId
    incarnation: int
    at: int
    name: str
    severity: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job will end, decided at `at` (a cancel: when it was accepted), before its last replicas
    are down. `rule` names the row of the failure table, or the cause of the cancel."""

    state: JobState
    rule: str
    error: JobError | None = None
    at: int = 0


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt is given up for another one, because of `rule`, as decided at `at`.

    `keeps_room`: the next one begins at once in the same places; else the job waits for room, from `not_before` on.
    """

    rule: str
    at: int
    keeps_room: bool = True
    not_before: int = 0


@dataclass(frozen=True, slots=True)
class Parent:
    """Of a job that another one made: that one's uid and name, and the number of the trial that it evaluates (0 = it is
    the backing job of a pipeline)."""

    uid: JobUid
    name: JobName
    trial: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job that runs replicas (a custom job, an `ml` training job), and its current attempt.

    `attempt` counts from 1; 0 before the first admission. `phase` is where that attempt stands, WAITING while there
    is none with room. `outcome` is set as soon as it is decided; the state follows when nothing of the job lives.
    `retry` is set while the attempt is ended for the next one. `retries`: job retries so far, by rule. `not_before`:
    it is not admitted earlier. `memory_factor`: what the out-of-memory escalation has made of each replica's limit.
    `checkpoint`: when something was last seen written to its bucket, or a warning said that nothing was.
    `short_disks`: nodes of this attempt that were told to have little room left. `notes`: not told yet, for more like
    them may come until `notes_until`. `public_json` is the created resource in public JSON (input fields only), from
    which views are made.
    """

    uid: JobUid
    name: JobName
    display_name: str
    spec: JobSpec
    public_json: str
    created: int
    updated: int
    labels: tuple[tuple[str, str], ...] = ()
    state: JobState = JobState.QUEUED
    started: int = 0
    ended: int = 0
    attempt: int = 0
    phase: AttemptState = AttemptState.WAITING
    replicas: tuple[Replica, ...] = ()
    outcome: Outcome | None = None
    error: JobError | None = None
    retry: Retry | None = None
    retries: Counters = ()
    not_before: int = 0
    memory_factor: float = 1.0
    drills: tuple[Drill, ...] = ()
    checkpoint: int = 0
    warned_of_limit: bool = False
    short_disks: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    notes_until: int = 0
    parent: Parent | None = None

    @property
    def is_placed(self) -> bool:
        """Whether it holds places on nodes now."""
        return self.phase not in (AttemptState.WAITING, AttemptState.OVER) and bool(self.replicas)
