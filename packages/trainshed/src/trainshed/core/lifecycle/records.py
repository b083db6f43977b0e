"""The stored record of a job, with its creator and its drills, which are faults that users order
(spec/operations#drills).

Times are nanoseconds since the epoch. 0 means that the event has not happened.
"""

import enum

from msgspec import Struct

from trainshed.core.capacity import Delay
from trainshed.core.dependencies import Dependency
from trainshed.core.failure.rules import Counters
from trainshed.core.job import ExitRecord, JobError, JobSpec
from trainshed.core.lifecycle.states import AttemptState, JobState, ReplicaState
from trainshed.core.names import JobName, JobUid, ReplicaId, normalize_emails
from trainshed.core.units import Nanos


class DrillKind(enum.StrEnum):
    """The kind of failure that a drill (ordered by a user) injects."""

    #: The replica must leave its node, as for maintenance.
    MAINTENANCE = "maintenance"
    #: The replica is killed from outside.
    KILL = "kill"
    #: The main process is killed as if at its memory limit.
    OOM = "oom"
    #: The main process receives SIGSEGV.
    SEGV = "segv"
    #: The attempt is judged as if it had been preempted.
    PREEMPT = "preempt"
    #: The attempt is judged as if no nodes could run it (a stock-out).
    STOCKOUT = "stockout"
    #: The attempt is judged as if the service had failed.
    INTERNAL = "internal"

    @property
    def is_of_process(self) -> bool:
        """Whether the engine injects the fault into the replica's processes. The other kinds need no
        engine."""
        return self in (DrillKind.KILL, DrillKind.OOM, DrillKind.SEGV)


class Drill(Struct, frozen=True):
    """One ordered fault, which is injected once. Without `at_line`, it is injected as soon as the replica
    runs. With `at_line`, it is injected when the replica runs and a new line of its log matches."""

    #: Number of the drill (ordered fault) within its job, from 1.
    number: int
    kind: DrillKind
    replica: ReplicaId
    #: Time of the order (ns).
    ordered: Nanos
    at_line: str | None = None
    #: Time of the injection (ns), or 0 before it.
    fired: Nanos = 0
    #: Number of the attempt in which the fault was injected.
    attempt: int = 0
    #: Number of the replica's run (incarnation) in which the fault was injected.
    incarnation: int = 0
    #: Whether the injection is confirmed.
    done: bool = False

    @property
    def is_armed(self) -> bool:
        return self.fired == 0


OUTLIVES_LABEL = "trainshed-outlives"
"""Label of jobs that a program of a job creates: with "on", the created job continues after the end of its
creator."""


class ActingJob(Struct, frozen=True):
    """The job whose program created or cancelled a resource."""

    uid: JobUid
    name: JobName
    #: The first job in a chain of jobs that create each other. For a job that a user created, the job itself.
    root: JobUid
    #: The address of the user who created the first job.
    person: str = ""

    def __post_init__(self) -> None:
        normalize_emails(self, "person")


class Actor(Struct, frozen=True):
    """The actor that created or cancelled a resource."""

    #: The e-mail address of the user or service account.
    email: str
    #: The job whose program acted, or None if a user acted.
    job: ActingJob | None = None

    def __post_init__(self) -> None:
        normalize_emails(self, "email")

    @property
    def person(self) -> str:
        """The address of the user or service account that is responsible for the created job, tuning job or
        pipeline, which counts against the quotas and the fair share of this address."""
        return self.job.person if self.job is not None else self.email

    def __str__(self) -> str:
        return f"the job {self.job.name}" if self.job is not None else self.email


def person_of(creator: Actor | None) -> str:
    """Return the address of the user who is responsible for a creator's work, or "" if unknown."""
    return creator.person if creator is not None else ""


class Replica(Struct, frozen=True):
    """One replica of the current attempt."""

    id: ReplicaId
    state: ReplicaState = ReplicaState.WAITING
    #: Number of the replica's current run (incarnation), from 1. At most one run of a replica is alive at a
    #: time.
    incarnation: int = 1
    #: The node of the replica, or None if the replica waits for a node.
    node: str | None = None
    #: Start of the replica (ns).
    started: Nanos = 0
    #: How the replica ended. None before its end or without an attempt record.
    exit: ExitRecord | None = None
    #: Why the replica must leave its node, or None.
    leaving: str | None = None
    #: Number of restarts in this attempt, by rule.
    restarts: Counters = ()
    #: Times of the last restarts (ns), for rules that limit the restart rate.
    recent: tuple[int, ...] = ()
    #: The node that the replica had to leave, or that was lost together with the replica. The replica's next
    #: run avoids this node.
    avoid: str | None = None
    #: Number of recorded notes (messages to users) of this run of the replica.
    notes: int = 0
    #: Earliest start of the replica (ns), or 0 without a pause.
    not_before: Nanos = 0
    #: How the program of this run (incarnation) started: "started warm: ..." or "started cold: ...". None if
    #: unknown.
    began: str | None = None


class StopNotice(enum.StrEnum):
    """Why the platform stops a program, as its metadata server reports it. A program that a user or a time
    limit stops receives no notice."""

    #: The scheduler gives the capacity to another job.
    PREEMPTED = "preempted"
    #: The replica must leave its node.
    MAINTENANCE = "maintenance"


class Outcome(Struct, frozen=True):
    """The decided end of a job. It is set before the last replicas have stopped."""

    state: JobState
    #: The row of the failure table, or the cause of the cancel.
    rule: str
    error: JobError | None = None
    #: Time of the decision (ns). For a cancel, the time of its acceptance.
    at: Nanos = 0
    #: The stop notice for running programs, or None.
    notice: StopNotice | None = None


class Retry(Struct, frozen=True):
    """Why the current attempt ends, and how the next attempt starts."""

    #: The row of the failure table that caused the retry.
    rule: str
    #: Time of the decision (ns).
    at: Nanos
    #: Whether the next attempt starts at once on the same nodes. Otherwise, the job waits for capacity.
    keeps_room: bool = True
    #: Earliest admission of the next attempt (ns).
    not_before: Nanos = 0
    #: The stop notice for running programs, or None.
    notice: StopNotice | None = None


class Parent(Struct, frozen=True):
    """The tuning job or pipeline that created a job."""

    uid: JobUid
    name: JobName
    #: Number of the trial that the job evaluates, or 0 for the job of a pipeline.
    trial: int = 0


class WorkRecord(Struct, frozen=True):
    """Common fields of the records of a job, a tuning job and a pipeline."""

    uid: JobUid
    name: JobName
    display_name: str
    #: The resource in the request, in public JSON with input fields only. The API builds its responses from
    #: it.
    public_json: str
    created: Nanos
    updated: Nanos
    labels: tuple[tuple[str, str], ...] = ()
    state: JobState = JobState.QUEUED
    #: First time at which all replicas of the job ran, or at which the first trial ran.
    started: Nanos = 0
    ended: Nanos = 0
    #: The decided outcome, or None. The state changes only after all replicas, or all jobs of a tuning job or
    #: pipeline, have ended.
    outcome: Outcome | None = None
    #: The public error of a finished job, tuning job or pipeline.
    error: JobError | None = None
    #: The tuning job or pipeline that created the job. None for a client's job. Always None for a pipeline.
    parent: Parent | None = None
    #: The client that created the record, or the creator of the tuning job or pipeline that runs it. None if
    #: unknown.
    creator: Actor | None = None
    #: The jobs that have not finished yet, and that must finish before this work requests capacity.
    dependencies: tuple[Dependency, ...] = ()
    #: Time at which the last dependency finished (ns), or 0.
    unblocked: Nanos = 0

    @property
    def is_held(self) -> bool:
        """Return whether the work must not request capacity yet, because it waits for other jobs."""
        return bool(self.dependencies) and self.outcome is None

    @property
    def eligible(self) -> Nanos:
        """Return the time from which the work waits for capacity (ns): its creation, or the end of its last
        dependency."""
        return self.unblocked or self.created

    @property
    def creating_job(self) -> ActingJob | None:
        """Return the job whose program created this job, tuning job or pipeline. Return None if a user or the
        service created it."""
        return self.creator.job if self.creator is not None and self.parent is None else None


class Job(WorkRecord, frozen=True, kw_only=True):
    """A job that runs replicas (a custom job or an `ml` training job), with its current attempt."""

    spec: JobSpec
    #: Total nanoseconds that retries have waited for capacity after the job first ran.
    waited: Nanos = 0
    #: Number of the current attempt, from 1. 0 before the first admission.
    attempt: int = 0
    #: Time at which the attempt received its nodes (ns), or 0 without nodes.
    placed: Nanos = 0
    #: Start of the attempt's first program (ns), from which usage counts. 0 before any start.
    began: Nanos = 0
    #: `began` of the previous attempt. The next field, `freed`, is the end of the last replica of that
    #: attempt.
    began_before: Nanos = 0
    freed: Nanos = 0
    #: State of the current attempt. WAITING while no attempt has capacity.
    phase: AttemptState = AttemptState.WAITING
    replicas: tuple[Replica, ...] = ()
    #: Set while the attempt is stopped for the next one.
    retry: Retry | None = None
    #: Number of job retries so far, by rule.
    retries: Counters = ()
    #: Earliest admission of the job (ns).
    not_before: Nanos = 0
    #: The factor by which out-of-memory retries have raised each replica's memory limit.
    memory_factor: float = 1.0
    drills: tuple[Drill, ...] = ()
    #: Nodes of this attempt whose disks are nearly full.
    short_disks: tuple[str, ...] = ()
    #: The last recorded reason for a delayed start. None without a delay, or after a replica has started.
    delay: Delay | None = None

    @property
    def is_placed(self) -> bool:
        """Return whether the job has nodes now."""
        return self.phase not in (AttemptState.WAITING, AttemptState.OVER) and bool(self.replicas)

    @property
    def running_until(self) -> Nanos:
        """Return the time at which the running limit ends the job (ns), or 0 if the limit does not apply now
        (spec/lifecycle#time-limits)."""
        if not self.started or self.phase is AttemptState.WAITING:
            return 0
        return self.started + self.waited + self.spec.scheduling.timeout
