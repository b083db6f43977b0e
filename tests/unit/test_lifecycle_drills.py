"""Drills (spec/operations#drills): faults that a user orders, injected into a real job as it runs."""

import pytest

from tests.unit.jobs import PRIMARY, SECOND, WORKER, Life, job
from trainshed.core.lifecycle.drills import Drill, DrillKind
from trainshed.core.lifecycle.events import (
    DrillLanded,
    DrillOrdered,
    DrillTriggered,
    InjectFault,
    StopReplica,
    StopReplicas,
)
from trainshed.core.lifecycle.machine import deadlines
from trainshed.core.lifecycle.states import AttemptState, JobState
from trainshed.core.lifecycle.transition import instructions
from trainshed.core.names import ReplicaId

FAULTS = [DrillKind.KILL, DrillKind.OOM, DrillKind.SEGV]


def order(
    kind: DrillKind, replica: ReplicaId = WORKER, *, at_line: str = "", after: int = 0, at: int = 0
) -> DrillOrdered:
    return DrillOrdered(Drill(0, kind, replica, at, at_line, after))


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_of_a_replica_is_demanded_until_it_has_landed(kind: DrillKind) -> None:
    """spec/operations#drills: worker kill, OOM, crash. What it leads to is seen like any other end."""
    life = Life(job(1, 1)).up().see(order(kind))
    assert instructions(life.job) == (InjectFault(1, kind, 1, WORKER, 1),)
    life.see(DrillLanded(1))
    assert instructions(life.job) == ()
    assert life.job.drills[0].done
    assert [e.kind for e in life.told][-2:] == ["drill_ordered", "drill_fired"]


def test_a_killed_replica_restarts_and_the_drill_does_not_come_again() -> None:
    """spec/operations#drills: once."""
    life = Life(job(1, 1)).up().see(order(DrillKind.KILL)).exits(WORKER, signal=9)
    assert InjectFault(1, DrillKind.KILL, 1, WORKER, 1) in instructions(life.job)
    life.see(DrillLanded(1)).up()
    assert instructions(life.job) == ()
    assert life.replica(WORKER).incarnation == 2
    assert life.job.drills[0].incarnation == 1


def test_maintenance_moves_the_replica_alone() -> None:
    """spec/operations#drills and spec/failures#maintenance: its node is to be left; others on it stay, for it
    is only a drill."""
    life = Life(job(1, 1)).up().see(order(DrillKind.MAINTENANCE))
    assert instructions(life.job) == (StopReplica(1, WORKER, 1),)
    life.exits(WORKER, 0, stopped=True)
    assert (life.replica(WORKER).node, life.replica(WORKER).avoid) == ("", "b")
    assert "under maintenance (drill 1)" in life.last
    assert life.job.drills[0].done


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (DrillKind.PREEMPT, "spot_preempted"),
        (DrillKind.STOCKOUT, "stock_out"),
        (DrillKind.INTERNAL, "internal_error"),
    ],
)
def test_an_attempt_meets_what_the_rule_of_that_name_is_about(kind: DrillKind, rule: str) -> None:
    """spec/operations#drills: stockout, preemption, internal error. The verdict names the drill."""
    life = Life(job(1, 1)).up().see(order(kind))
    assert instructions(life.job) == (StopReplicas(1),)
    (verdict,) = [e for e in life.told if e.kind == "verdict"]
    assert (verdict.details["rule"], verdict.details["drill"]) == (rule, 1)
    assert life.job.retry is not None
    assert not life.job.retry.keeps_room
    life.up()
    assert (life.job.attempt, life.job.state) == (2, JobState.RUNNING)


def test_a_drill_waits_for_its_replica_to_run() -> None:
    """spec/operations#drills: into a real job; what is not up yet cannot be hit."""
    life = Life(job(1, 1)).see(order(DrillKind.KILL))
    assert life.job.drills[0].is_armed
    life.up()
    assert life.job.drills[0].fired
    assert InjectFault(1, DrillKind.KILL, 1, WORKER, 1) in instructions(life.job)


def test_a_drill_after_a_time_fires_at_its_deadline() -> None:
    """spec/operations#drills, on demand: so long after the replica was first seen running."""
    life = Life(job(1, 1)).up()
    life.see(order(DrillKind.KILL, after=30 * SECOND, at=life.now))
    (due,) = [d for d in deadlines(life.job) if isinstance(d.event, DrillTriggered)]
    assert due.at == life.job.drills[0].ordered + 30 * SECOND
    assert life.job.drills[0].is_armed
    life.now = due.at
    life.see(due.event)
    assert life.job.drills[0].fired
    assert not any(isinstance(d.event, DrillTriggered) for d in deadlines(life.job))


def test_a_drill_at_a_line_fires_when_the_line_is_seen_and_once() -> None:
    """spec/operations#drills, on demand."""
    life = Life(job(1, 1)).up().see(order(DrillKind.SEGV, at_line="step 100"))
    assert not any(isinstance(d.event, DrillTriggered) for d in deadlines(life.job))
    assert life.job.drills[0].is_armed
    life.see(DrillTriggered(1, life.now))
    fired = life.job
    assert fired.drills[0].fired
    assert life.see(DrillTriggered(1, life.now)).job == fired


def test_drills_are_numbered_in_the_order_in_which_they_are_ordered() -> None:
    life = Life(job(1, 1)).see(order(DrillKind.KILL), order(DrillKind.OOM, PRIMARY))
    assert [d.number for d in life.job.drills] == [1, 2]


def test_a_drill_that_met_its_budget_ends_the_job_as_the_real_thing_would() -> None:
    """spec/operations#drills: an internal error on demand is one of the three attempts."""
    life = Life(job(1)).up()
    for _ in range(3):
        life.see(order(DrillKind.INTERNAL, PRIMARY)).up()
    assert life.job.state is JobState.FAILED
    assert life.job.error is not None
    assert life.job.error.code == 13
    assert life.job.phase is AttemptState.OVER


def test_a_drill_does_nothing_to_what_is_being_stopped() -> None:
    """spec/lifecycle#cancel: never lost, whatever else was ordered."""
    life = Life(job(1, 1)).up().cancel().see(order(DrillKind.PREEMPT))
    assert life.job.drills[0].is_armed
    assert life.up().job.state is JobState.CANCELLED
