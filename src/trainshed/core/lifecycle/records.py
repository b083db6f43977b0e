"""The durable record of a job: what is stored, and all that the machine decides from.

Times are nanoseconds since the epoch, 0 where the moment has not come.
"""

from dataclasses import dataclass

from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import JobName, JobUid, ReplicaId
from trainshed.core.specs.model import JobSpec


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """How a replica's main process ended, as its shim saw it (DESIGN §4, "attempt record").

    Exactly one of `exit_code` and `signal` is set. `oom`: the replica's memory limit was hit and the main
    process died of it. `log_lines`: lines written in all, so that readers know the log is whole.
    `tail`: the last lines of the log, at most 2 kB, for the public error message.
    """

    exit_code: int | None
    signal: int | None
    oom: bool
    started: int
    ended: int
    log_lines: int = 0
    tail: str = ""


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of the current attempt. `incarnation` fences: at most one of them lives."""

    id: ReplicaId
    state: ReplicaState = ReplicaState.WAITING
    incarnation: int = 1
    node: str = ""
    started: int = 0
    exit: ExitRecord | None = None


@dataclass(frozen=True, slots=True)
class JobError:
    """The public error of a job: a google.rpc code and the public message (SPEC §2.1)."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job will end, decided at `at` (a cancel: when it was accepted), before its last replicas
    are down. `rule` names the row of the failure table, or the cause of the cancel."""

    state: JobState
    rule: str
    error: JobError | None = None
    at: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A job and its current attempt.

    `attempt` counts from 1; 0 before the first admission. `launched`: replicas of this attempt may have
    processes. `outcome` is set as soon as it is decided; the state follows when nothing of the job lives.
    `public_json` is the created resource in public JSON (input fields only), from which views are made.
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
    launched: bool = False
    replicas: tuple[Replica, ...] = ()
    outcome: Outcome | None = None
    error: JobError | None = None
