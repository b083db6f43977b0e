"""The scheduler's snapshot as the controller keeps it: decisions count from the moment they are made
(docs/adr/0012)."""

import asyncio
import itertools
import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.unit.jobs import CREATED, PRIMARY, SECOND, Life, job
from trainshed.controller.capacity import CapacityTracker, NodeNews, event_of_decision
from trainshed.core.capacity import NodeCondition, OthersUse, Preflight, WaitReason
from trainshed.core.errors import Unavailable
from trainshed.core.job.spec import Choice, Scheduling, Strategy
from trainshed.core.lifecycle.events import (
    CapacityRefused,
    Event,
    JobAdmitted,
    NodeLeft,
    Preempted,
    ReplicaPlaced,
)
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.engines.port import Node, NodeState
from trainshed.scheduler.model import Decision, Policy

NOW = CREATED + 100 * SECOND
ON_A = JobAdmitted(((PRIMARY, "a"),))


def room(*nodes: str, vcpus: int = 4) -> CapacityTracker:
    made = CapacityTracker(Policy(strict=True), lambda _: None, lambda: None)
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


def waited_for() -> asyncio.Future[Preflight]:
    """The answer to a pre-flight, for one who looks at it when it is there."""
    loop = asyncio.new_event_loop()
    loop.close()
    return loop.create_future()


class InTurns:
    """A tracker whose decisions take a turn for each step. `soon`: how often it wanted to go on."""

    def __init__(self, *nodes: str) -> None:
        self.soon = 0
        seconds = itertools.count()
        self.room = CapacityTracker(
            Policy(strict=True), lambda _: None, self._go_on_soon, lambda: float(next(seconds))
        )
        self.room.set_nodes([Node(name, 4, 2**40) for name in nodes])
        while self.turn():
            pass

    def turn(self) -> list[Decision]:
        """The decisions of the turns up to the first that has some; none if nobody wants to go on."""
        made: list[Decision] = []
        while self.soon and not made:
            self.soon -= 1
            made += self.room.go_on(NOW)
        return made

    def _go_on_soon(self) -> None:
        self.soon += 1


def test_a_long_decision_takes_turns_and_what_is_told_meanwhile_counts_after_it() -> None:
    """ADR 12: as if all of it had been decided in the moment in which it was begun."""
    scene = InTurns("a", "b")
    first, second, third = (
        replace(job(1), uid=JobUid(uid), name=replace(job(1).name, job_id=str(uid)))
        for uid in (7, 8, 9)
    )
    for one in (first, second):
        scene.room.put(one)
    assert scene.room.decide(NOW) == ()
    assert scene.soon == 1
    # Told and asked in the middle: nothing of it is known to those who decide.
    scene.room.put(third)
    scene.room.put(second)  # It is told again, as it is: that is no news.
    scene.room.set_node_state("b", NodeState.GONE, "gone")
    assert scene.room.decide(NOW) == ()
    assert scene.room.queue_length == 2
    assert [status.replicas for status in scene.room.node_statuses()] == [(), ()]
    admitted = scene.turn() + scene.turn()
    assert [decision.uid for decision in admitted] == [7, 8]
    event = event_of_decision(admitted[1], second)
    assert event is not None
    assert scene.room.counts(second.uid, event)
    # And then it counts: the node is gone, and the third waits for one.
    assert scene.turn() == []
    assert scene.room.queue_length == 1
    waiting = scene.room.why(third.uid, NOW)
    assert waiting is not None
    assert waiting.reason is WaitReason.CAPACITY


def test_a_job_that_is_over_in_the_middle_of_a_decision_gives_its_place_to_another() -> None:
    scene = InTurns("a")
    first, second = (
        replace(job(1), uid=JobUid(uid), name=replace(job(1).name, job_id=str(uid)))
        for uid in (7, 8)
    )
    scene.room.put(first)
    assert scene.room.decide(NOW) == ()
    scene.room.put(replace(first, state=JobState.CANCELLED))
    scene.room.put(second)
    assert [decision.uid for decision in scene.turn()] == [first.uid]
    assert [decision.uid for decision in scene.turn()] == [second.uid]


def test_a_preflight_takes_turns_and_nothing_of_it_is_seen() -> None:
    """ADR 12: others are answered as if nobody had asked it, and what they tell counts after it."""
    scene = InTurns("a")
    first, second = (
        replace(job(1), uid=JobUid(uid), name=replace(job(1).name, job_id=str(uid)))
        for uid in (7, 8)
    )
    answer = waited_for()
    scene.room.preflight(first, NOW, answer)
    assert not answer.done()
    assert scene.room.queue_length == 0
    assert scene.room.position(first.uid) == 0
    assert scene.room.why(first.uid, NOW) is None
    scene.room.put(second)
    assert scene.room.decide(NOW) == ()
    assert scene.room.queue_length == 0
    assert [decision.uid for decision in scene.turn()] == [second.uid]
    assert answer.result().places == ((str(PRIMARY), "a"),)


def test_who_asks_twice_is_answered_between_decisions() -> None:
    scene = InTurns("a")
    answers = [waited_for() for _ in range(3)]
    for answer in answers:
        scene.room.preflight(job(1), NOW, answer)
    answers[1].cancel()
    assert scene.turn() == []
    assert [answer.done() for answer in answers] == [True] * 3
    assert answers[0].result() == answers[2].result()


def test_a_preflight_that_is_not_answered_any_more_leaves_nothing() -> None:
    scene = InTurns("a")
    answer = waited_for()
    scene.room.preflight(job(1), NOW, answer)
    scene.room.refuse(Unavailable("it stops"))
    with pytest.raises(Unavailable):
        answer.result()
    assert scene.turn() == []
    scene.room.put(job(1))
    assert [decision.uid for decision in scene.room.decide(NOW) or scene.turn()] == [job(1).uid]


def drawn(draw: random.Random, uid: int) -> Job:
    """A job of any of some shapes, projects and priorities, of which some are spot work and some have other
    choices."""
    scheduling = Scheduling(
        strategy=draw.choice((Strategy.STANDARD, Strategy.STANDARD, Strategy.SPOT)),
        timeout=draw.choice((600, 3600)) * SECOND,
    )
    made = job(draw.choice((1, 1, 2)), scheduling=scheduling)
    project = draw.choice(("demo", "other"))
    name = replace(made.name, project_id=project, job_id=str(uid))
    # Clocks are set back now and then.
    created = CREATED + (uid - draw.choice((0, 0, 0, 5))) * SECOND
    made = replace(made, uid=JobUid(uid), name=name, created=created, updated=created)
    return with_a_smaller_choice(made) if draw.random() < 0.3 else made


def with_a_smaller_choice(subject: Job) -> Job:
    spec, machines = subject.spec, tuple(pool.machine for pool in subject.spec.pools)
    smaller = tuple(replace(each, type="n1-standard-1", vcpus=1) for each in machines)
    choices = (Choice(spec.region, machines), Choice(spec.region, smaller))
    return replace(subject, spec=replace(spec, choices=choices, patience=7 * SECOND))


@pytest.mark.parametrize("seed", range(40))
def test_one_more_behind_those_who_wait_is_decided_about_as_if_all_were_looked_at(
    seed: int,
) -> None:
    """ADR 12: who comes behind one of the same shape for whom there is no room is not looked at."""
    draw, now = random.Random(seed), NOW
    policy = Policy(
        strict=draw.random() < 0.7, max_replicas=3, patience=draw.choice((20, 600)) * SECOND
    )
    alarms: list[int] = []
    # No decision takes long: a turn that were cut short would make the two differ.
    ours = CapacityTracker(policy, alarms.append, lambda: None, spent=lambda: 0.0)
    theirs = CapacityTracker(policy, lambda _: None, lambda: None, spent=lambda: 0.0)
    for one in (ours, theirs):
        one.set_nodes([Node("a", 8, 2**40), Node("b", 6, 2**40)])
    live: list[JobUid] = []
    for uid in range(1, 60):
        now += draw.choice((0, 1, 30)) * SECOND
        if live and draw.random() < 0.25:
            gone = live.pop(draw.randrange(len(live)))
            for one in (ours, theirs):
                one.forget(gone)
        else:
            live.append(JobUid(uid))
            came = drawn(draw, uid)
            for one in (ours, theirs):
                one.put(came)
        if any(at <= now for at in alarms):
            alarms.clear()
            ours.time_passed()
        theirs.time_passed()  # As if something had changed each time: all are looked at.
        assert ours.decide(now) == theirs.decide(now)
        for waiting in live:
            assert ours.position(waiting) == theirs.position(waiting)
