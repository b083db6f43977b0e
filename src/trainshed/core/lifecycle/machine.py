"""The life of a job as one pure function: `step(job, event, now)` (SPEC §2, DESIGN §3).

What must be done is not a second record beside the state: `instructions(job)` and `deadlines(job)` follow
from the stored job alone, so after a crash they are found again by looking (docs/adr/0004).
"""

from dataclasses import dataclass, replace
from typing import assert_never

from trainshed.core.failure.evidence import Cause, cause_of_exit
from trainshed.core.failure.messages import CANCELLED
from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle import disks, drilling, pausing, preparing, reminders, story
from trainshed.core.lifecycle.endings import all_up, decide, evidence, judged, settle
from trainshed.core.lifecycle.events import (
    CancelCause,
    CancelRequested,
    CapacityRefused,
    CheckpointDue,
    CheckpointLooked,
    DrillLanded,
    DrillOrdered,
    DrillTriggered,
    Event,
    JobAdmitted,
    LimitNears,
    NodeLeft,
    PauseOver,
    Preempted,
    PreparationAdvanced,
    PreparationFailed,
    ReplicaExited,
    ReplicaLost,
    ReplicaNoted,
    ReplicaPlaced,
    ReplicaStarted,
    RuntimePrepared,
)
from trainshed.core.lifecycle.records import Job, Outcome, Replica
from trainshed.core.lifecycle.states import (
    AttemptState,
    AttemptTrigger,
    JobState,
    JobTrigger,
    ReplicaState,
    ReplicaTrigger,
)
from trainshed.core.lifecycle.turn import FailurePolicy, Step, Turn

_POLICY = FailurePolicy()


@dataclass(frozen=True, slots=True)
class Deadline:
    """What happens to the job at `at` (ns) if it has not moved on by then."""

    at: int
    event: Event


def step(job: Job, event: Event, now: int, policy: FailurePolicy = _POLICY) -> Step:
    """Apply one event. Events of an earlier attempt or incarnation, and events that come again, are ignored:
    whoever reports may report twice. Raises IllegalTransition for what can never be."""
    if job.state.is_final:
        return Step(job)
    turn = Turn(job, now, policy)
    if not isinstance(event, ReplicaNoted):
        pausing.tell_notes(turn)
    _take(turn, event)
    drilling.fire_due(turn)
    return turn.step()


def _take(turn: Turn, event: Event) -> None:
    match event:
        case JobAdmitted():
            _admitted(turn, event)
        case RuntimePrepared() | PreparationAdvanced():
            preparing.take(turn, event)
        case PreparationFailed():
            _preparation_failed(turn, event)
        case CapacityRefused():
            _capacity_refused(turn, event)
        case Preempted():
            _preempted(turn, event)
        case NodeLeft():
            _node_left(turn, event)
        case ReplicaPlaced() | ReplicaStarted() | ReplicaNoted() | ReplicaExited() | ReplicaLost():
            _take_of_replica(turn, event)
        case CancelRequested():
            _cancel_requested(turn, event)
        case DrillOrdered() | DrillTriggered() | DrillLanded():
            drilling.take(turn, event)
        case LimitNears() | CheckpointDue() | CheckpointLooked():
            reminders.take(turn, event)
        case PauseOver():
            pausing.over(turn, event)
        case _:
            assert_never(event)


def _take_of_replica(
    turn: Turn, event: ReplicaPlaced | ReplicaStarted | ReplicaNoted | ReplicaExited | ReplicaLost
) -> None:
    replica = _current(turn.job, event)
    if replica is None:
        return
    match event:
        case ReplicaPlaced():
            _replica_placed(turn, replica, event)
        case ReplicaStarted():
            up = turn.replica_goes(replica.id, ReplicaTrigger.STARTED, started=event.at)
            if up is not None:
                turn.tell(story.started(turn.job, up))
                all_up(turn)
        case ReplicaNoted():
            if event.name in disks.NOTES:
                disks.take_note(turn, replica, event)
            else:
                pausing.take_note(turn, replica, event)
        case ReplicaExited():
            _replica_exited(turn, replica, event)
        case ReplicaLost():
            _replica_lost(turn, replica, event)
        case _:
            assert_never(event)


def deadlines(job: Job) -> tuple[Deadline, ...]:
    """The moments that the passing of time brings: maxWaitTime until the first RUNNING, then the running limit, counted
    from the first RUNNING (SPEC §2); reminders; drills that wait for a time; pauses."""
    if job.state.is_final or job.outcome is not None:
        return ()
    scheduling = job.spec.scheduling
    found = [*reminders.deadlines_of(job), *drilling.deadlines_of(job), *pausing.deadlines_of(job)]
    if job.started:
        end = job.started + scheduling.timeout
        found.append((end, CancelRequested(CancelCause.TIMEOUT, end)))
    elif scheduling.max_wait is not None:
        end = job.created + scheduling.max_wait
        found.append((end, CancelRequested(CancelCause.MAX_WAIT, end)))
    return tuple(Deadline(at, event) for at, event in found)


def _admitted(turn: Turn, event: JobAdmitted) -> None:
    if event.attempt not in (0, turn.job.attempt + 1):
        return  # decided before the job's last change was known
    if not turn.attempt_goes(AttemptTrigger.ADMITTED):
        return
    nodes = dict(event.nodes)
    job = turn.job
    turn.job_goes(JobTrigger.ADMITTED)
    turn.change(
        attempt=job.attempt + 1,
        not_before=0,
        short_disks=(),
        replicas=tuple(Replica(r, node=nodes.get(r, "")) for r in job.spec.replicas()),
    )
    turn.tell(story.admitted(turn.job, turn.now))


def _preparation_failed(turn: Turn, event: PreparationFailed) -> None:
    job = turn.job
    if event.attempt != job.attempt or job.phase not in (
        AttemptState.PREPARING,
        AttemptState.STARTING,
        AttemptState.RUNNING,
    ):
        return
    if job.phase is not AttemptState.PREPARING and not any(
        r.state is ReplicaState.WAITING for r in job.replicas
    ):
        return
    cause = Cause.PACKAGE if event.by_user else Cause.SERVICE
    judged(turn, evidence(turn, cause, text=event.message))


def _capacity_refused(turn: Turn, event: CapacityRefused) -> None:
    job = turn.job
    waits = job.phase is AttemptState.WAITING or any(not r.node for r in job.replicas)
    if waits and job.phase is not AttemptState.STOPPING and turn.now >= job.not_before:
        judged(turn, evidence(turn, Cause.STOCK_OUT, text=event.reason))


def _preempted(turn: Turn, event: Preempted) -> None:
    job = turn.job
    if not job.is_placed:
        return
    if job.phase is not AttemptState.STOPPING:
        text = f"its room went to {event.by}"
        judged(turn, evidence(turn, Cause.PREEMPTED, text=text))
    elif job.retry is not None and job.retry.keeps_room:
        # It is being shut down for another attempt anyway: that one has to ask for room again, and nothing is counted.
        turn.change(retry=replace(job.retry, keeps_room=False))


def _replica_placed(turn: Turn, replica: Replica, event: ReplicaPlaced) -> None:
    if replica.node or replica.state is not ReplicaState.WAITING:
        return
    placed = turn.change_replica(replica.id, node=event.node)
    turn.tell(story.placed(turn.job, placed, turn.now))


def _node_left(turn: Turn, event: NodeLeft) -> None:
    """Whatever is on the node has to go; what is over there keeps its record, and comes back elsewhere if at all."""
    job = turn.job
    if not job.is_placed:
        return
    for replica in job.replicas:
        if replica.node != event.node or replica.leaving:
            continue
        if job.phase is AttemptState.PREPARING:
            turn.change_replica(replica.id, node="", avoid=event.node)
            continue
        turn.change_replica(replica.id, leaving=event.reason)
        if turn.replica_goes(replica.id, ReplicaTrigger.ASKED_TO_LEAVE) is not None:
            turn.tell(story.asked_to_leave(job, replica, event.reason, turn.now))


def _replica_exited(turn: Turn, replica: Replica, event: ReplicaExited) -> None:
    asked = replica.state is ReplicaState.STOPPING
    started = replica.started or event.exit.started
    ended = turn.replica_goes(replica.id, ReplicaTrigger.EXITED, started=started, exit=event.exit)
    if ended is None:
        return
    turn.tell(*story.exited(turn.job, ended, event.exit))
    cause = cause_of_exit(event.exit, leaving=asked)
    text = (
        replica.leaving
        if cause is Cause.LEFT
        else disks.suspicion(turn.job, replica, event.exit, cause)
    )
    judged(turn, evidence(turn, cause, ended, exit_record=event.exit, text=text), ended)


def _replica_lost(turn: Turn, replica: Replica, event: ReplicaLost) -> None:
    asked = replica.state is ReplicaState.STOPPING
    lost = turn.replica_goes(replica.id, ReplicaTrigger.LOST)
    if lost is None:
        return
    turn.tell(story.lost(turn.job, lost, event, turn.now))
    if asked:
        cause, text = Cause.LEFT, replica.leaving
    else:
        cause, text = (Cause.SERVICE if event.by_service else Cause.LOST), event.cause
    judged(turn, evidence(turn, cause, lost, text=text), lost)


def _cancel_requested(turn: Turn, event: CancelRequested) -> None:
    job = turn.job
    if job.outcome is not None and (
        job.outcome.state is not JobState.FAILED or _primary_exited_before(job, event.at)
    ):
        return
    if event.cause is CancelCause.MAX_WAIT and job.started:
        return  # it was up just as the moment came
    message = story.cancel_message(job, event.cause)
    turn.job_goes(JobTrigger.CANCEL_ACCEPTED)
    turn.tell(story.cancel_requested(job, event.cause, event.at))
    error = JobError(CANCELLED, message, cause=Cause.CANCELLED.value)
    decide(turn, Outcome(JobState.CANCELLED, f"cancelled_{event.cause}", error, event.at))
    settle(turn)


def _current(
    job: Job, event: ReplicaStarted | ReplicaNoted | ReplicaExited | ReplicaLost | ReplicaPlaced
) -> Replica | None:
    """The replica an event is about, unless the event is of another attempt or incarnation."""
    if event.attempt != job.attempt:
        return None
    for replica in job.replicas:
        if replica.id == event.replica and replica.incarnation == event.incarnation:
            return replica
    return None


def _primary_exited_before(job: Job, at: int) -> bool:
    return any(r.id.is_primary and r.exit is not None and r.exit.ended <= at for r in job.replicas)
