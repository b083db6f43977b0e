"""The life of a job as one pure function: `step(job, event, now)` (SPEC §2, DESIGN §3).

What must be done is not a second record beside the state: `instructions(job)` and `deadlines(job)` follow
from the stored job alone, so after a crash they are found again by looking (docs/adr/0004).
"""

from dataclasses import dataclass, replace
from typing import assert_never

from trainshed.core.failure import (
    CANCELLED,
    INTERNAL,
    INTERNAL_ERROR_MESSAGE,
    INVALID_ARGUMENT,
    Effect,
    Evidence,
    judge,
)
from trainshed.core.lifecycle import story
from trainshed.core.lifecycle.events import (
    CancelCause,
    CancelRequested,
    Event,
    Instruction,
    JobAdmitted,
    PreparationFailed,
    PrepareRuntime,
    ReleaseSlots,
    ReplicaExited,
    ReplicaLost,
    ReplicaStarted,
    RuntimePrepared,
    StartReplicas,
    StopReplicas,
    TimelineEntry,
)
from trainshed.core.lifecycle.records import Job, JobError, Outcome, Replica
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import ReplicaId, public_replica_name


@dataclass(frozen=True, slots=True)
class Step:
    """What an event led to. An event that changes nothing gives the same job and no entries."""

    job: Job
    timeline: tuple[TimelineEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Deadline:
    """The job is cancelled for `cause` if it has not moved on by `at` (ns)."""

    cause: CancelCause
    at: int


def step(job: Job, event: Event, now: int) -> Step:
    """Apply one event. Events of an earlier attempt or incarnation, and events that come again, are ignored:
    whoever reports may report twice."""
    if job.state.is_final:
        return Step(job)
    match event:
        case JobAdmitted():
            return _admitted(job, event, now)
        case RuntimePrepared():
            return _prepared(job, event, now)
        case PreparationFailed():
            return _preparation_failed(job, event, now)
        case ReplicaStarted():
            return _replica_started(job, event, now)
        case ReplicaExited():
            return _replica_exited(job, event, now)
        case ReplicaLost():
            return _replica_lost(job, event, now)
        case CancelRequested():
            return _cancel_requested(job, event, now)
        case _:
            assert_never(event)


def instructions(job: Job) -> tuple[Instruction, ...]:
    """What is to be done now, for this state; doing it again harms nothing."""
    if job.attempt == 0:
        return ()
    if job.state.is_final:
        return (ReleaseSlots(job.attempt),)
    if job.outcome is not None:
        return (StopReplicas(job.attempt),)
    if not job.launched:
        return (PrepareRuntime(job.attempt),)
    if any(replica.state is ReplicaState.WAITING for replica in job.replicas):
        return (StartReplicas(job.attempt),)
    return ()


def deadlines(job: Job) -> tuple[Deadline, ...]:
    """The time limits that run now: maxWaitTime until the first RUNNING, then the running limit, counted
    from the first RUNNING (SPEC §2)."""
    if job.state.is_final or job.outcome is not None:
        return ()
    scheduling = job.spec.scheduling
    if job.started:
        return (Deadline(CancelCause.TIMEOUT, job.started + scheduling.timeout),)
    if scheduling.max_wait is not None:
        return (Deadline(CancelCause.MAX_WAIT, job.created + scheduling.max_wait),)
    return ()


def _admitted(job: Job, event: JobAdmitted, now: int) -> Step:
    if job.state is not JobState.QUEUED or job.outcome is not None:
        return Step(job)
    nodes = dict(event.nodes)
    replicas = tuple(Replica(r, node=nodes.get(r, "")) for r in job.spec.replicas())
    admitted = replace(
        job, state=JobState.PREPARING, attempt=job.attempt + 1, replicas=replicas, updated=now
    )
    return Step(admitted, (story.admitted(admitted, now),))


def _prepared(job: Job, event: RuntimePrepared, now: int) -> Step:
    if event.attempt != job.attempt or job.launched or job.outcome is not None:
        return Step(job)
    return Step(
        replace(job, launched=True, updated=now),
        (story.launching(now),),
    )


def _preparation_failed(job: Job, event: PreparationFailed, now: int) -> Step:
    if event.attempt != job.attempt or job.outcome is not None:
        return Step(job)
    if job.launched and not any(r.state is ReplicaState.WAITING for r in job.replicas):
        return Step(job)
    if event.by_user:
        primary = public_replica_name(job.name.api, ReplicaId(0, 0))
        error = JobError(
            INVALID_ARGUMENT,
            f"The replica {primary} exited with a non-zero status of 1. Termination reason: Error. \n"
            f"{event.message}",
        )
        rule = "package_failed"
    else:
        error = JobError(INTERNAL, INTERNAL_ERROR_MESSAGE)
        rule = "internal_error"
    told = TimelineEntry(now, rule, event.message)
    return _decide(job, Outcome(JobState.FAILED, rule, error, now), now, (told,))


def _replica_started(job: Job, event: ReplicaStarted, now: int) -> Step:
    replica = _current(job, event)
    if replica is None or replica.state is not ReplicaState.WAITING:
        return Step(job)
    up = replace(replica, state=ReplicaState.RUNNING, started=event.at)
    return _running_if_complete(_with(job, up, now), now, (story.started(job, up),))


def _replica_exited(job: Job, event: ReplicaExited, now: int) -> Step:
    replica = _current(job, event)
    if replica is None or replica.state.is_over:
        return Step(job)
    started = replica.started or event.exit.started
    ended = replace(replica, state=ReplicaState.EXITED, started=started, exit=event.exit)
    told = story.exited(job, ended, event.exit)
    return _judged(_with(job, ended, now), ended, None, now, (told,))


def _replica_lost(job: Job, event: ReplicaLost, now: int) -> Step:
    replica = _current(job, event)
    if replica is None or replica.state.is_over:
        return Step(job)
    lost = replace(replica, state=ReplicaState.LOST)
    told = story.lost(job, lost, event, now)
    return _judged(_with(job, lost, now), lost, event, now, (told,))


def _cancel_requested(job: Job, event: CancelRequested, now: int) -> Step:
    if job.outcome is not None and (
        job.outcome.state is not JobState.FAILED or _primary_exited_before(job, event.at)
    ):
        return Step(job)
    outcome = Outcome(
        JobState.CANCELLED,
        f"cancelled_{event.cause}",
        JobError(CANCELLED, story.cancel_message(job, event.cause)),
        event.at,
    )
    told = story.cancel_requested(job, event.cause, event.at)
    cancelling = replace(job, state=JobState.CANCELLING)
    return _decide(cancelling, outcome, now, (told,))


def _current(job: Job, event: ReplicaStarted | ReplicaExited | ReplicaLost) -> Replica | None:
    """The replica an event is about, unless the event is of another attempt or incarnation."""
    if event.attempt != job.attempt:
        return None
    for replica in job.replicas:
        if replica.id == event.replica and replica.incarnation == event.incarnation:
            return replica
    return None


def _with(job: Job, changed: Replica, now: int) -> Job:
    replicas = tuple(changed if r.id == changed.id else r for r in job.replicas)
    return replace(job, replicas=replicas, updated=now)


def _primary_exited_before(job: Job, at: int) -> bool:
    return any(r.id.is_primary and r.exit is not None and r.exit.ended <= at for r in job.replicas)


def _running_if_complete(job: Job, now: int, told: tuple[TimelineEntry, ...]) -> Step:
    """RUNNING as soon as every replica is up (SPEC §2, "Parallel start")."""
    waiting = any(r.state is ReplicaState.WAITING for r in job.replicas)
    if waiting or job.outcome is not None or job.state is not JobState.PREPARING:
        return Step(job, told)
    started = max(r.started for r in job.replicas)
    up = replace(job, state=JobState.RUNNING, started=job.started or started, updated=now)
    return Step(up, (*told, story.running(up)))


def _judged(
    job: Job,
    replica: Replica,
    lost: ReplicaLost | None,
    now: int,
    told: tuple[TimelineEntry, ...],
) -> Step:
    """Let the failure table decide what a replica's end means, unless the end of the job is decided.

    `lost`: how it was lost, None if it left a record."""
    decided = job.outcome
    if decided is not None and not (
        decided.state is JobState.CANCELLED and _succeeded_before(replica, decided)
    ):
        return _finished_if_down(job, now, told)
    program = job.spec.pool(replica.id.pool).program
    verdict = judge(
        Evidence(
            job.name,
            replica.id,
            program.module is not None,
            replica.exit,
            lost.cause if lost else "",
            lost is not None and lost.by_service,
        )
    )
    match verdict.effect:
        case Effect.REPLICA_DONE:
            return _running_if_complete(job, now, told)
        case Effect.JOB_SUCCEEDS:
            at = replica.exit.ended if replica.exit else now
            running = replace(job, started=job.started or at)
            return _decide(running, Outcome(JobState.SUCCEEDED, verdict.rule, at=now), now, told)
        case Effect.JOB_FAILS:
            entry = story.verdict(verdict.rule, replica, now)
            outcome = Outcome(JobState.FAILED, verdict.rule, verdict.error, now)
            return _decide(job, outcome, now, (*told, entry))
        case _:
            assert_never(verdict.effect)


def _succeeded_before(replica: Replica, cancelled: Outcome) -> bool:
    """A primary that exited 0 before the cancel was accepted keeps its success (SPEC §2, "Cancel")."""
    return (
        replica.id.is_primary
        and replica.exit is not None
        and replica.exit.exit_code == 0
        and replica.exit.ended <= cancelled.at
    )


def _decide(job: Job, outcome: Outcome, now: int, told: tuple[TimelineEntry, ...]) -> Step:
    return _finished_if_down(replace(job, outcome=outcome, updated=now), now, told)


def _finished_if_down(job: Job, now: int, told: tuple[TimelineEntry, ...]) -> Step:
    """The final state, as soon as nothing of the job lives (SPEC §2, DESIGN §3.8)."""
    outcome = job.outcome
    assert outcome is not None
    if job.launched and not all(r.state.is_over for r in job.replicas):
        return Step(job, told)
    ended = replace(job, state=outcome.state, error=outcome.error, ended=now, updated=now)
    return Step(ended, (*told, story.over(outcome, now)))
