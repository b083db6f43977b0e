"""Drills in the life of a job: ordered, triggered, injected (SPEC §8, `drills`)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from trainshed.core.failure.evidence import Cause
from trainshed.core.lifecycle import story
from trainshed.core.lifecycle.drills import Drill, DrillKind
from trainshed.core.lifecycle.endings import evidence, judged
from trainshed.core.lifecycle.events import DrillLanded, DrillOrdered, DrillTriggered, Event
from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.lifecycle.states import AttemptState, ReplicaState, ReplicaTrigger
from trainshed.core.lifecycle.turn import Turn

_ATTEMPT_CAUSES = {
    DrillKind.PREEMPT: Cause.PREEMPTED,
    DrillKind.STOCKOUT: Cause.STOCK_OUT,
    DrillKind.INTERNAL: Cause.SERVICE,
}


def take(turn: Turn, event: DrillOrdered | DrillTriggered | DrillLanded) -> None:
    match event:
        case DrillOrdered():
            drill = replace(event.drill, number=len(turn.job.drills) + 1)
            turn.change(drills=(*turn.job.drills, drill))
            turn.tell(story.drill_ordered(turn.job, drill))
        case DrillTriggered():
            drill = _drill(turn.job, event.number)
            if drill is not None and drill.is_armed and _target(turn.job, drill) is not None:
                _fire(turn, drill)
        case DrillLanded():
            drill = _drill(turn.job, event.number)
            if drill is not None and not drill.done:
                _set(turn, replace(drill, done=True))
        case _:
            assert_never(event)


def fire_due(turn: Turn) -> None:
    """Fire what waits for no line and whose time has come."""
    for drill in turn.job.drills:
        at = due_at(turn.job, drill)
        if at is not None and at <= turn.now:
            _fire(turn, drill)


def due_at(job: Job, drill: Drill) -> int | None:
    """When a drill without a line fires, as things are; None while it waits for its replica, a line or nothing."""
    target = _target(job, drill)
    if not drill.is_armed or drill.at_line or target is None:
        return None
    return max(target.started, drill.ordered) + drill.after


def deadlines_of(job: Job) -> Iterator[tuple[int, Event]]:
    for drill in job.drills:
        at = due_at(job, drill)
        if at is not None:
            yield at, DrillTriggered(drill.number, at)


def _target(job: Job, drill: Drill) -> Replica | None:
    """The running replica that the drill is for."""
    if job.phase not in (AttemptState.STARTING, AttemptState.RUNNING):
        return None
    for replica in job.replicas:
        if replica.id == drill.replica and replica.state is ReplicaState.RUNNING:
            return replica
    return None


def _fire(turn: Turn, drill: Drill) -> None:
    replica = turn.replica(drill.replica)
    fired = replace(
        drill, fired=turn.now, attempt=turn.job.attempt, incarnation=replica.incarnation
    )
    _set(turn, fired)
    turn.tell(story.drill_fired(turn.job, fired))
    match drill.kind:
        case DrillKind.KILL | DrillKind.OOM | DrillKind.SEGV:
            return  # an instruction; what it leads to is seen like any other end
        case DrillKind.MAINTENANCE:
            reason = f"{replica.node} is under maintenance (drill {drill.number})"
            turn.change_replica(replica.id, leaving=reason)
            turn.replica_goes(replica.id, ReplicaTrigger.ASKED_TO_LEAVE)
            turn.tell(story.asked_to_leave(turn.job, replica, reason, turn.now))
        case DrillKind.PREEMPT | DrillKind.STOCKOUT | DrillKind.INTERNAL:
            text = f"drill {drill.number} says so"
            found = evidence(turn, _ATTEMPT_CAUSES[drill.kind], text=text)
            judged(turn, found, drill=drill.number)
        case _:
            assert_never(drill.kind)
    _set(turn, replace(fired, done=True))


def _drill(job: Job, number: int) -> Drill | None:
    return next((drill for drill in job.drills if drill.number == number), None)


def _set(turn: Turn, changed: Drill) -> None:
    drills = tuple(changed if d.number == changed.number else d for d in turn.job.drills)
    turn.change(drills=drills)
