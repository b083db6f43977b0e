"""Drills (spec/operations#drills): faults that a user orders, injected into a real job as it runs."""

import pytest

from tests.unit.jobs import WORKER, Life, job
from trainshed.core.lifecycle.events import DrillOrdered, StopReplicas
from trainshed.core.lifecycle.records import Drill, DrillKind
from trainshed.core.lifecycle.states import JobState
from trainshed.core.lifecycle.transition import instructions
from trainshed.core.names import ReplicaId


def order(
    kind: DrillKind, replica: ReplicaId = WORKER, *, at_line: str = "", after: int = 0, at: int = 0
) -> DrillOrdered:
    return DrillOrdered(Drill(0, kind, replica, at, at_line, after))


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (DrillKind.PREEMPT, "preempted"),
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
    assert life.job.retry is not None and not life.job.retry.keeps_room
    life.up()
    assert (life.job.attempt, life.job.state) == (2, JobState.RUNNING)
