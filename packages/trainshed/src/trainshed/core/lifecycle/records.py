"""The durable record of a job: what is stored, with who made it and its drills (spec/operations#drills), and
all that the machine decides from.

Times are nanoseconds since the epoch; 0 = the moment has not come.
"""

import enum

from msgspec import Struct

from trainshed.core.capacity import Delay
from trainshed.core.failure.rules import Counters
from trainshed.core.job import ExitRecord, JobError, JobSpec
from trainshed.core.lifecycle.states import AttemptState, JobState, ReplicaState
from trainshed.core.names import JobName, JobUid, ReplicaId, normalize_emails
from trainshed.core.units import Nanos


class DrillKind(enum.StrEnum):
    """The failure that a drill injects."""

    #: The replica is asked to leave its node, as for maintenance.
    MAINTENANCE = "maintenance"
    #: The replica is killed from outside.
    KILL = "kill"
    #: The main process is killed as if at its memory limit.
    OOM = "oom"
    #: The main process gets SIGSEGV.
    SEGV = "segv"
    #: The attempt is judged as if it had been preempted.
    PREEMPT = "preempt"
    #: The attempt is judged as if there were a stock-out.
    STOCKOUT = "stockout"
    #: The attempt is judged as if the service had failed.
    INTERNAL = "internal"

    @property
    def is_of_process(self) -> bool:
        """Whether the engine injects the fault into the replica's processes; the other kinds need no
        engine."""
        return self in (DrillKind.KILL, DrillKind.OOM, DrillKind.SEGV)


class Drill(Struct, frozen=True):
    """One ordered fault.

    It fires once, when the replica is running and a line of its log, written after the drill was ordered,
    matches `at_line`; without `at_line` as soon as the replica runs.
    """

    #: Counts a job's drills from 1.
    number: int
    kind: DrillKind
    replica: ReplicaId
    #: When it was ordered (ns).
    ordered: Nanos
    at_line: str | None = None
    #: When it fired (ns); 0 = it is armed.
    fired: Nanos = 0
    #: The attempt that it hit.
    attempt: int = 0
    #: The incarnation that it hit.
    incarnation: int = 0
    #: The fault is known to have landed.
    done: bool = False

    @property
    def is_armed(self) -> bool:
        return self.fired == 0


OUTLIVES_LABEL = "trainshed-outlives"
"""Label of jobs that a program of a job creates: "on" = the created job continues when its creator
ends."""


class ActingJob(Struct, frozen=True):
    """The job whose program made or cancelled something."""

    uid: JobUid
    name: JobName
    #: The job that begins the line in which each job made the next; the job itself if a person made it.
    root: JobUid
    #: The address of the user who created the first job.
    person: str = ""

    def __post_init__(self) -> None:
        normalize_emails(self, "person")


class Actor(Struct, frozen=True):
    """The actor that created or cancelled a resource."""

    #: The address of the principal.
    email: str
    #: The job whose program it was; None = it was a person.
    job: ActingJob | None = None

    def __post_init__(self) -> None:
        normalize_emails(self, "email")

    @property
    def person(self) -> str:
        """The address of the person or service account who answers for it: quotas and usage count by it."""
        return self.job.person if self.job is not None else self.email

    def __str__(self) -> str:
        return f"the job {self.job.name}" if self.job is not None else self.email


def person_of(creator: Actor | None) -> str:
    """Return the address of the user who is responsible for a creator's work; "" if unknown."""
    return creator.person if creator is not None else ""


class Replica(Struct, frozen=True):
    """One replica of the current attempt."""

    id: ReplicaId
    state: ReplicaState = ReplicaState.WAITING
    #: Counts from 1. Fences: at most one incarnation of a replica lives.
    incarnation: int = 1
    #: The node that it is placed on; None = it waits for one.
    node: str | None = None
    #: When it started (ns).
    started: Nanos = 0
    #: How it ended; None = it has not, or there is no record.
    exit: ExitRecord | None = None
    #: Why it was asked to leave its node; None = it was not.
    leaving: str | None = None
    #: Restarts in this attempt, by rule.
    restarts: Counters = ()
    #: When the last restarts were (ns), for rules that limit their rate.
    recent: tuple[int, ...] = ()
    #: The node that it had to leave, or that it was lost with.
    avoid: str | None = None
    #: How many notes of this incarnation are recorded.
    notes: int = 0
    #: It is not started before this moment (ns); 0 = there is no pause.
    not_before: Nanos = 0
    #: How this incarnation's program started: "started warm: ..." or "started cold: ..."; None =
    #: unknown.
    began: str | None = None


class StopNotice(enum.StrEnum):
    """Why the platform stops a program, as its metadata server reports it. A program that a user or a time
    limit stops gets no notice."""

    #: The capacity goes to another job.
    PREEMPTED = "preempted"
    #: The replica has to leave its node.
    MAINTENANCE = "maintenance"


class Outcome(Struct, frozen=True):
    """How the job will end, decided before its last replicas are down."""

    state: JobState
    #: The row of the failure table, or the cause of the cancel.
    rule: str
    error: JobError | None = None
    #: When it was decided (ns); of a cancel: when it was accepted.
    at: Nanos = 0
    #: The notice that running programs get; None = none.
    notice: StopNotice | None = None


class Retry(Struct, frozen=True):
    """Why the attempt is given up, and how the next one begins."""

    #: The row of the failure table that decided it.
    rule: str
    #: When it was decided (ns).
    at: Nanos
    #: The next attempt begins at once in the same places; otherwise the job waits for places.
    keeps_room: bool = True
    #: The job is not admitted before this moment (ns).
    not_before: Nanos = 0
    #: The notice that running programs get; None = none.
    notice: StopNotice | None = None


class Parent(Struct, frozen=True):
    """The tuning job or pipeline that made a job."""

    uid: JobUid
    name: JobName
    #: Number of the trial that the job evaluates; 0 = it is the backing job of a pipeline.
    trial: int = 0


class WorkRecord(Struct, frozen=True):
    """Common fields of the records of a job, a tuning job and a pipeline."""

    uid: JobUid
    name: JobName
    display_name: str
    #: The created resource in public JSON (input fields only), from which views are made.
    public_json: str
    created: Nanos
    updated: Nanos
    labels: tuple[tuple[str, str], ...] = ()
    state: JobState = JobState.QUEUED
    #: When it was running for the first time: all replicas of a job, or a first trial.
    started: Nanos = 0
    ended: Nanos = 0
    #: Its decided end; None = it is not decided. The state follows when nothing of it lives.
    outcome: Outcome | None = None
    #: Its public error once it is over.
    error: JobError | None = None
    #: Its creator, never set for a pipeline; None = a client.
    parent: Parent | None = None
    #: The client that made it, or its parent; None = it is not known.
    creator: Actor | None = None

    @property
    def maker(self) -> ActingJob | None:
        """The job whose program made it; None = a person or the service did."""
        return self.creator.job if self.creator is not None and self.parent is None else None


class Job(WorkRecord, frozen=True, kw_only=True):
    """A job that runs replicas (a custom job, an `ml` training job), and its current attempt."""

    spec: JobSpec
    #: How long retries have waited for places after it was running (ns).
    waited: Nanos = 0
    #: Counts from 1; 0 before the first admission.
    attempt: int = 0
    #: Since when that attempt holds its places on nodes (ns); 0 = it holds none.
    placed: Nanos = 0
    #: When the first program of that attempt started (ns), from which usage counts; 0 = none has.
    began: Nanos = 0
    #: The same of the attempt before, and when its last replica had ended.
    began_before: Nanos = 0
    freed: Nanos = 0
    #: State of that attempt; WAITING while no attempt has places.
    phase: AttemptState = AttemptState.WAITING
    replicas: tuple[Replica, ...] = ()
    #: Set while the attempt is ended for the next one.
    retry: Retry | None = None
    #: Job retries so far, by rule.
    retries: Counters = ()
    #: It is not admitted before this moment (ns).
    not_before: Nanos = 0
    #: The factor by which out-of-memory retries have raised each replica's memory limit.
    memory_factor: float = 1.0
    drills: tuple[Drill, ...] = ()
    #: Nodes of this attempt that were reported to have little disk space left.
    short_disks: tuple[str, ...] = ()
    #: The last recorded reason why the attempt does not start; None = there was none, or something has
    #: started since.
    delay: Delay | None = None

    @property
    def is_placed(self) -> bool:
        """Whether it holds places on nodes now."""
        return self.phase not in (AttemptState.WAITING, AttemptState.OVER) and bool(self.replicas)

    @property
    def running_until(self) -> Nanos:
        """When its running limit ends it (ns); 0 = that does not count now (spec/lifecycle#time-limits)."""
        if not self.started or self.phase is AttemptState.WAITING:
            return 0
        return self.started + self.waited + self.spec.scheduling.timeout
