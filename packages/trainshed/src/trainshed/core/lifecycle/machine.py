"""The life of a job as one pure function: `step(job, event, now)` (spec/lifecycle, spec/invariants).

Pending work is not stored: `transition.instructions(job)` and `deadlines(job)` derive it from the stored job.
A crash therefore loses no pending work (docs/adr/0003).
"""

from collections.abc import Mapping
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.capacity import Delay
from trainshed.core.failure.evidence import Cause, cause_of_exit
from trainshed.core.failure.messages import INTERNAL, INTERNAL_ERROR_MESSAGE
from trainshed.core.job import JobError
from trainshed.core.lifecycle import notes, timeline
from trainshed.core.lifecycle.dependencies import end_dependency
from trainshed.core.lifecycle.endings import (
    decide,
    end_attempt,
    evidence,
    judge_end,
    mark_running_if_all_up,
    settle,
    start_elsewhere,
)
from trainshed.core.lifecycle.events import (
    CancelCause,
    CancelRequested,
    CapacityRefused,
    DependencyEnded,
    DrillLanded,
    DrillOrdered,
    DrillTriggered,
    Event,
    JobAdmitted,
    NodeLeft,
    NodesGiven,
    PauseOver,
    Preempted,
    PreparationFailed,
    ReplicaPlaced,
    RuntimePrepared,
    StartDelayed,
    TimelineEntry,
)
from trainshed.core.lifecycle.records import Drill, DrillKind, Job, Outcome, Replica
from trainshed.core.lifecycle.replica_events import (
    NEVER_STARTED,
    ReplicaExited,
    ReplicaLost,
    ReplicaNoted,
    ReplicaStarted,
)
from trainshed.core.lifecycle.states import (
    AttemptState,
    AttemptTrigger,
    JobState,
    JobTrigger,
    ReplicaState,
    ReplicaTrigger,
)
from trainshed.core.lifecycle.transition import FailurePolicy, Step, Transition, W
from trainshed.core.names import ReplicaId
from trainshed.core.units import Nanos

_POLICY = FailurePolicy()
_STOPPED_THERE = "it was stopped on its node, but not by the service"
"""The text for replicas that the node's agent has stopped because it had no contact with the service for a
whole lease (a setting, in seconds)."""


class Deadline(Struct, frozen=True):
    """An event that the job receives at the time `at` (ns), unless its state changes first."""

    at: Nanos
    event: Event


def step(job: Job, event: Event, now: Nanos, policy: FailurePolicy = _POLICY) -> Step[Job]:
    """Apply one event to the job.

    Events of an earlier attempt or of an earlier run (incarnation) of a replica, and repeated events, are
    ignored, because engines may report an event twice. Raise IllegalTransition for an event that is
    impossible in the job's state.
    """
    if job.state.is_final:
        return Step(job)
    transition = Transition(job, now, policy)
    _apply_event(transition, event)
    # Trigger the drills (ordered faults) that wait for no log line, if their replica runs now.
    for drill in transition.job.drills:
        is_due = drill.is_armed and not drill.at_line
        if is_due and drill_target(transition.job, drill) is not None:
            _fire_drill(transition, drill)
    return transition.step()


def _apply_event(transition: Transition, event: Event) -> None:
    match event:
        case JobAdmitted():
            _admit(transition, event)
        case RuntimePrepared() | StartDelayed() | NodesGiven():
            _apply_preparation(transition, event)
        case PreparationFailed():
            _preparation_failed(transition, event)
        case CapacityRefused():
            _capacity_refused(transition, event)
        case Preempted():
            _preempt(transition, event)
        case NodeLeft():
            _node_left(transition, event)
        case ReplicaPlaced() | ReplicaStarted() | ReplicaNoted() | ReplicaExited() | ReplicaLost():
            _take_of_replica(transition, event)
        case CancelRequested():
            _cancel_requested(transition, event)
        case DrillOrdered() | DrillTriggered() | DrillLanded():
            _take_drill(transition, event)
        case PauseOver() | DependencyEnded():
            _wait_ended(transition, event)
        case _:
            assert_never(event)


def _take_of_replica(
    transition: Transition, event: ReplicaPlaced | ReplicaStarted | ReplicaNoted | ReplicaExited | ReplicaLost
) -> None:
    replica = _current(transition.job, event)
    if replica is None:
        return
    match event:
        case ReplicaPlaced():
            if not replica.node and replica.state is ReplicaState.WAITING:
                placed = transition.change_replica(replica.id, node=event.node)
                transition.record(timeline.placement(transition.job, placed, transition.now))
        case ReplicaStarted():
            began = _start_time(transition, event.at)
            up = transition.fire_replica(replica.id, ReplicaTrigger.STARTED, started=began)
            if up is not None:
                if transition.job.delay is not None:
                    transition.change(delay=None)
                transition.record(timeline.start(transition.job, up))
                mark_running_if_all_up(transition)
        case ReplicaNoted():
            notes.record_note(transition, replica, event)
        case ReplicaExited():
            _replica_exited(transition, replica, event)
        case ReplicaLost():
            _replica_lost(transition, replica, event)
        case _:
            assert_never(event)


def deadlines(job: Job) -> tuple[Deadline, ...]:
    """Return the events that the job will receive at fixed times.

    These are cancellations at the end of maxWaitTime before the first RUNNING, cancellations at the running
    limit (spec/lifecycle#time-limits), and ends of pauses. A job whose end is decided, and a job that waits
    for other jobs, have no deadlines.
    """
    if job.state.is_final or job.outcome is not None or job.is_held:
        return ()
    scheduling = job.spec.scheduling
    pauses = {r.not_before for r in job.replicas if r.state is ReplicaState.WAITING} - {0}
    due: list[tuple[Nanos, Event]] = [(at, PauseOver(at)) for at in pauses]
    if end := job.running_until:
        due.append((end, CancelRequested(CancelCause.TIMEOUT, end)))
    elif scheduling.max_wait is not None and not job.started:
        end = job.eligible + scheduling.max_wait
        due.append((end, CancelRequested(CancelCause.MAX_WAIT, end)))
    return tuple(Deadline(at, event) for at, event in due)


def _admit(transition: Transition, event: JobAdmitted) -> None:
    if event.attempt not in (None, transition.job.attempt + 1):
        return  # Ignore it: the scheduler decided before it received the job's last change.
    if not transition.fire_attempt(AttemptTrigger.ADMITTED):
        return
    nodes = dict(event.nodes)
    job = transition.job
    transition.fire_job(JobTrigger.ADMITTED)
    waited = max(0, transition.now - job.not_before) if job.started else 0
    transition.change(
        attempt=job.attempt + 1,
        placed=transition.now,
        waited=job.waited + waited,
        not_before=0,
        short_disks=(),
        delay=None,
        replicas=tuple(Replica(r, node=nodes.get(r)) for r in job.spec.replicas()),
    )
    transition.record(timeline.admission(transition.job, transition.now))


def _preparation_failed(transition: Transition, event: PreparationFailed) -> None:
    job = transition.job
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
    judge_end(transition, evidence(transition, event.cause, text=event.message))


def _capacity_refused(transition: Transition, event: CapacityRefused) -> None:
    job = transition.job
    waits = job.phase is AttemptState.WAITING or any(not r.node for r in job.replicas)
    if waits and job.phase is not AttemptState.STOPPING and transition.now >= job.not_before:
        judge_end(transition, evidence(transition, Cause.STOCK_OUT, text=event.reason))


def _preempt(transition: Transition, event: Preempted) -> None:
    job = transition.job
    if not job.is_placed:
        return
    if job.phase is not AttemptState.STOPPING:
        judge_end(transition, evidence(transition, event.cause, text=event.reason))
    elif job.retry is not None and job.retry.keeps_room:
        # The attempt is already stopping for a retry. Only the capacity of the next attempt changes, and no
        # retry is counted.
        transition.change(retry=replace(job.retry, keeps_room=False))


def _node_left(transition: Transition, event: NodeLeft) -> None:
    """Request the replicas on a node to leave it, except running replicas that may stay. A finished replica
    keeps its record. Its next run, if any, is on another node."""
    job = transition.job
    if not job.is_placed:
        return
    for replica in job.replicas:
        if replica.node != event.node or replica.leaving:
            continue
        if replica.id in event.staying:
            continue
        if job.phase is AttemptState.PREPARING:
            transition.change_replica(replica.id, node=None, avoid=event.node)
            continue
        transition.change_replica(replica.id, leaving=event.reason)
        if transition.fire_replica(replica.id, ReplicaTrigger.ASKED_TO_LEAVE) is not None:
            transition.record(timeline.asked_to_leave(job, replica, event.reason, transition.now))


def _start_time(transition: Transition, at: Nanos) -> Nanos:
    """Return the start time of a replica, limited to the range from the creation of its job to now. Clock
    errors therefore cannot affect time limits. 0 if the replica has not started."""
    return max(min(at, transition.now), transition.job.created) if at else 0


def _replica_exited(transition: Transition, replica: Replica, event: ReplicaExited) -> None:
    started = replica.started or _start_time(transition, event.exit.started)
    ended = transition.fire_replica(replica.id, ReplicaTrigger.EXITED, started=started, exit=event.exit)
    if ended is None:
        return
    transition.record(*timeline.exit_entries(transition.job, ended, event.exit))
    cause, text = cause_of_exit(event.exit), None
    if cause is Cause.LEFT and (replica.leaving or event.loss is Cause.LOST):
        text = replica.leaving or _STOPPED_THERE
    elif cause is Cause.LEFT:
        cause, text = event.loss, event.cause
        ended = _mark_evicted(transition, ended, cause, text)
    judge_end(transition, evidence(transition, cause, ended, exit_record=event.exit, text=text), ended)


def _replica_lost(transition: Transition, replica: Replica, event: ReplicaLost) -> None:
    was_asked = replica.state is ReplicaState.STOPPING
    lost = transition.fire_replica(replica.id, ReplicaTrigger.LOST)
    if lost is None:
        return
    transition.record(timeline.loss(transition.job, lost, event, transition.now))
    is_unbegun = event.cause == NEVER_STARTED and event.loss is Cause.LOST and not replica.started
    if was_asked and is_unbegun and start_elsewhere(transition, lost):
        return
    # Use a more precise cause than LEFT if the engine knows one. For example, replicas on a failing node are
    # requested to leave it before they are lost.
    if was_asked and event.loss is Cause.LOST:
        cause, text = Cause.LEFT, replica.leaving
    else:
        cause, text = (Cause.SERVICE if event.by_service else event.loss), event.cause
        lost = _mark_evicted(transition, lost, cause, text)
    judge_end(transition, evidence(transition, cause, lost, text=text), lost)


def _mark_evicted(transition: Transition, replica: Replica, cause: Cause, text: str | None) -> Replica:
    """Mark a replica as leaving its node if its Pod was evicted, so that its next run (incarnation) is on
    another node. Return the replica."""
    if cause is not Cause.POD_EVICTED or replica.leaving:
        return replica
    return transition.change_replica(replica.id, leaving=text)


def _cancel_requested(transition: Transition, event: CancelRequested) -> None:
    job = transition.job
    if job.outcome is not None and (
        job.outcome.state is not JobState.FAILED
        # Keep the failure: the primary ended before the cancel was accepted.
        or any(r.id.is_primary and r.exit and r.exit.ended <= event.at for r in job.replicas)
    ):
        return
    if event.cause is CancelCause.MAX_WAIT and job.started:
        return  # The limit no longer applies: all replicas have already run.
    message = timeline.cancel_reason(event, job.spec.scheduling)
    transition.cancel(event, message)
    transition.change(retry=None)
    end_attempt(transition)
    settle(transition)


def _wait_ended(transition: Transition, event: PauseOver | DependencyEnded) -> None:
    if isinstance(event, DependencyEnded):
        if (outcome := end_dependency(transition, event)) is not None:
            decide(transition, outcome)
            settle(transition)
        return
    for replica in transition.job.replicas:
        if 0 < replica.not_before <= event.at:
            transition.change_replica(replica.id, not_before=0)


def _current(
    job: Job, event: ReplicaStarted | ReplicaNoted | ReplicaExited | ReplicaLost | ReplicaPlaced
) -> Replica | None:
    """Return the replica that an event refers to, or None if the event is from another attempt, or from
    another run (incarnation) of the replica."""
    if event.attempt != job.attempt:
        return None
    for replica in job.replicas:
        if replica.id == event.replica and replica.incarnation == event.incarnation:
            return replica
    return None


# --- the runtime ---


def _apply_preparation(transition: Transition, event: RuntimePrepared | StartDelayed | NodesGiven) -> None:
    """Apply an event of the attempt's preparation: start prepared replicas, record delays, or set the nodes
    that the cluster has chosen."""
    if event.attempt != transition.job.attempt:
        return
    match event:
        case RuntimePrepared():
            if transition.fire_attempt(AttemptTrigger.PREPARED):
                transition.record(timeline.launching(event.took, transition.now))
        case StartDelayed():
            _record_delay(transition, event.delay)
        case NodesGiven():
            _set_nodes(transition, dict(event.nodes))


def _set_nodes(transition: Transition, nodes: Mapping[ReplicaId, str]) -> None:
    """Set the nodes that the cluster has chosen. The scheduler's placement on a cluster is only a
    preference."""
    if transition.job.phase not in (AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING):
        return
    moved = [
        transition.change_replica(replica.id, node=nodes[replica.id])
        for replica in transition.job.replicas
        if replica.node and not replica.state.is_over and nodes.get(replica.id, replica.node) != replica.node
    ]
    if moved:
        transition.record(timeline.nodes_given(transition.job, moved, transition.now))


def _record_delay(transition: Transition, delay: Delay) -> None:
    """Record why the start is delayed, unless the reason is unchanged or all replicas have started."""
    job = transition.job
    waits = job.phase in (AttemptState.STARTING, AttemptState.RUNNING) and any(
        replica.state is ReplicaState.WAITING for replica in job.replicas
    )
    if waits and delay.is_news(job.delay, transition.now):
        transition.change(delay=replace(delay, recorded=transition.now))
        transition.record(timeline.start_delayed(job, delay, transition.now))


# --- drills: faults that users order (spec/operations#drills) ---

_ATTEMPT_CAUSES = {
    DrillKind.PREEMPT: Cause.PREEMPTED,
    DrillKind.STOCKOUT: Cause.STOCK_OUT,
    DrillKind.INTERNAL: Cause.SERVICE,
}


def _take_drill(transition: Transition, event: DrillOrdered | DrillTriggered | DrillLanded) -> None:
    match event:
        case DrillOrdered():
            drill = replace(event.drill, number=len(transition.job.drills) + 1)
            transition.change(drills=(*transition.job.drills, drill))
            transition.record(timeline.drill_ordered(transition.job, drill))
        case DrillTriggered():
            drill = _drill(transition.job, event.number)
            if drill is not None and drill.is_armed and drill_target(transition.job, drill) is not None:
                _fire_drill(transition, drill)
        case DrillLanded():
            drill = _drill(transition.job, event.number)
            if drill is not None and not drill.done:
                _set_drill(transition, replace(drill, done=True))
        case _:
            assert_never(event)


def drill_target(job: Job, drill: Drill) -> Replica | None:
    """Return the target replica of a drill (a fault that a user ordered) if the replica is running, otherwise
    None."""
    if job.phase not in (AttemptState.STARTING, AttemptState.RUNNING):
        return None
    for replica in job.replicas:
        if replica.id == drill.replica and replica.state is ReplicaState.RUNNING:
            return replica
    return None


def _fire_drill(transition: Transition, drill: Drill) -> None:
    replica = transition.replica(drill.replica)
    fired = replace(
        drill, fired=transition.now, attempt=transition.job.attempt, incarnation=replica.incarnation
    )
    _set_drill(transition, fired)
    transition.record(timeline.drill_fired(transition.job, fired))
    match drill.kind:
        case DrillKind.KILL | DrillKind.OOM | DrillKind.SEGV:
            return  # The engine injects the fault and then reports the end.
        case DrillKind.MAINTENANCE:
            reason = f"{replica.node} is under maintenance (drill {drill.number})"
            transition.change_replica(replica.id, leaving=reason)
            transition.fire_replica(replica.id, ReplicaTrigger.ASKED_TO_LEAVE)
            transition.record(timeline.asked_to_leave(transition.job, replica, reason, transition.now))
        case DrillKind.PREEMPT | DrillKind.STOCKOUT | DrillKind.INTERNAL:
            text = f"caused by drill {drill.number}"
            proof = evidence(transition, _ATTEMPT_CAUSES[drill.kind], text=text)
            judge_end(transition, proof, drill=drill.number)
        case _:
            assert_never(drill.kind)
    _set_drill(transition, replace(fired, done=True))


def _drill(job: Job, number: int) -> Drill | None:
    return next((drill for drill in job.drills if drill.number == number), None)


def _set_drill(transition: Transition, changed: Drill) -> None:
    drills = tuple(changed if d.number == changed.number else d for d in transition.job.drills)
    transition.change(drills=drills)


# --- fallback for errors in the state machine itself ---

GIVEN_UP_RULE = "machine_failed"
_MAY_LIVE = (AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING)


def give_up(job: Job, event: Event, cause: str, now: Nanos) -> Step[Job]:
    """End the job because `event` could not be applied (`cause`).

    Transition tables are not used, because the error may be in them. If the event reports the end of a
    replica, the replica counts as ended. An earlier outcome is kept, so an accepted cancel is never lost
    (spec/lifecycle#cancel).
    """
    if job.state.is_final:
        return Step(job)
    replicas = tuple(
        replace(r, state=ReplicaState.LOST) if _is_nowhere(job, r, event) else r for r in job.replicas
    )
    error = JobError(INTERNAL, INTERNAL_ERROR_MESSAGE, cause=Cause.SERVICE.value, reason=cause)
    outcome = job.outcome or Outcome(JobState.FAILED, GIVEN_UP_RULE, error, now)
    lives = job.phase in _MAY_LIVE and any(not r.state.is_over for r in replicas)
    at = max(now, job.updated)
    ended = replace(
        job,
        replicas=replicas,
        outcome=outcome,
        retry=None,
        phase=AttemptState.STOPPING if lives else AttemptState.OVER,
        state=job.state if lives else outcome.state,
        error=None if lives else outcome.error,
        ended=0 if lives else at,
        placed=job.placed if lives else 0,
        updated=at,
    )
    return Step(ended, (timeline.service_failure(type(event).__name__, cause, now),))


def give_up_parent(
    work: W, name: str, cause: str, now: Nanos
) -> tuple[W, tuple[TimelineEntry, TimelineEntry]]:
    """End a tuning job or pipeline because of `cause`.

    `name` is its kind for the timeline. Transition tables are not used, because the error may be in them. An
    earlier outcome is kept.
    """
    error = JobError(INTERNAL, INTERNAL_ERROR_MESSAGE, cause=Cause.SERVICE.value, reason=cause)
    outcome = work.outcome or Outcome(JobState.FAILED, GIVEN_UP_RULE, error, now)
    at = max(now, work.updated)
    ended = replace(work, outcome=outcome, state=outcome.state, error=outcome.error, ended=at, updated=at)
    return ended, (timeline.service_failure(name, cause, now), timeline.end(outcome, now))


def _is_nowhere(job: Job, replica: Replica, event: Event) -> bool:
    """Return whether no further event will report the replica's end: it has no node, or this event reports
    its end."""
    if replica.state.is_over:
        return False
    ends_here = isinstance(event, ReplicaExited | ReplicaLost) and (
        event.attempt,
        event.replica,
        event.incarnation,
    ) == (job.attempt, replica.id, replica.incarnation)
    return ends_here or not replica.node
