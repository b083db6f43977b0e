"""The scheduler's snapshot as the controller keeps it: decisions count from the moment they are made
(docs/adr/0012)."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.unit.jobs import CREATED, PRIMARY, SECOND, Life, job
from trainshed.controller.capacity import CapacityTracker, NodeNews, event_of_decision
from trainshed.core.capacity import NodeCondition, OthersUse
from trainshed.core.job.spec import Scheduling, Strategy
from trainshed.core.lifecycle.events import (
    CapacityRefused,
    Event,
    JobAdmitted,
    NodeLeft,
    Preempted,
    ReplicaPlaced,
)
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.engines.port import Node, NodeState
from trainshed.scheduler.model import Policy

NOW = CREATED + 100 * SECOND
ON_A = JobAdmitted(((PRIMARY, "a"),))


def room(*nodes: str, vcpus: int = 4) -> CapacityTracker:
    made = CapacityTracker(Policy(strict=True), lambda _: None)
    made.set_nodes([Node(name, vcpus, 2**40) for name in nodes])
    return made


def decided(made: CapacityTracker, subject: Job) -> list[Event]:
    """The next decisions about a job, as its events."""
    found = [event_of_decision(d, subject) for d in made.decide(NOW) if d.uid == subject.uid]
    return [event for event in found if event is not None]


def test_others_use_is_waited_for_and_given_back() -> None:
    made, asks = room("a"), job(1)
    made.set_nodes([Node("a", 4, 2**40, others=OthersUse(vcpus=4))])
    made.put(asks)
    assert decided(made, asks) == []
    assert made.node_statuses()[0].others.vcpus == 4
    made.set_nodes([Node("a", 4, 2**40)])
    assert [type(event) for event in decided(made, asks)] == [JobAdmitted]


def test_a_node_that_is_not_heard_of_takes_nothing_and_keeps_what_runs() -> None:
    made = room("a")
    made.set_node_state("a", NodeState.UNHEARD, "no word for 40 s")
    made.put(asks := job(1))
    assert decided(made, asks) == []
    news = made.unfit("a")
    assert news == NodeNews(NodeCondition.GONE, "no word for 40 s", running_stays=True)
    made.set_node_state("a", NodeState.UP, "")
    assert [type(event) for event in decided(made, asks)] == [JobAdmitted]


def waits() -> tuple[CapacityTracker, Job]:
    return room("a"), job(1)


def lost_its_place() -> tuple[CapacityTracker, Job]:
    return room("a", "b"), Life(job(1)).see(ON_A, NodeLeft("a", "maintenance")).job


def yields() -> tuple[CapacityTracker, Job]:
    made = room("a")
    urgent = job(1)
    made.put(replace(urgent, uid=JobUid(8), name=replace(urgent.name, job_id="8")))
    return made, Life(job(1, scheduling=Scheduling(strategy=Strategy.SPOT))).see(ON_A).job


def never_fits() -> tuple[CapacityTracker, Job]:
    return room("a", vcpus=2), job(1)


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (waits, JobAdmitted),
        (lost_its_place, ReplicaPlaced),
        (yields, Preempted),
        (never_fits, CapacityRefused),
    ],
)
def test_a_decision_counts_until_the_job_is_stored_without_it(
    case: Callable[[], tuple[CapacityTracker, Job]], kind: type[Event]
) -> None:
    """spec/queue#gangs, queue: room is given once. What was decided meanwhile is decided anew, and not
    lost."""
    made, subject = case()
    made.put(subject)
    (event,) = decided(made, subject)
    assert isinstance(event, kind)
    assert made.counts(subject.uid, event)
    assert decided(made, subject) == [], "decided once"
    made.put(subject)
    assert not made.counts(subject.uid, event)
    assert decided(made, subject) == [event]
    assert made.counts(subject.uid, event)
