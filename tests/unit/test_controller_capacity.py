"""The scheduler's snapshot as the controller keeps it: decisions count from the moment they are made
(docs/adr/0012)."""

import asyncio
import random
import threading
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from tests.unit.jobs import CREATED, PRIMARY, SECOND, Life, job
from trainshed.controller.capacity import CapacityTracker, NodeNews
from trainshed.core.capacity import Node, NodeCondition, OthersUse, WaitReason
from trainshed.core.errors import Unavailable
from trainshed.core.job import Scheduling, Strategy
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
from trainshed.core.units import Nanos
from trainshed.engines.port import NodeState
from trainshed.scheduler import explaining
from trainshed.scheduler.model import Decision, GangRequest, Policy, event_of_decision
from trainshed.scheduler.snapshot import Snapshot

NOW = CREATED + 100 * SECOND
ON_A = JobAdmitted(((PRIMARY, "a"),))


def room(*nodes: str, vcpus: int = 4) -> CapacityTracker:
    made = CapacityTracker(Policy(strict=True), lambda _: None, lambda _: None)
    made.set_nodes([Node(name, vcpus, 2**40) for name in nodes])
    return made


def decided(made: CapacityTracker, subject: Job) -> list[Event]:
    """The next decisions about a job, as its events."""
    events = [event_of_decision(d, subject) for d in made.decide(NOW) if d.uid == subject.uid]
    return [event for event in events if event is not None]


def test_others_use_is_waited_for_and_given_back() -> None:
    made, asks = room("a"), job(1)
    made.set_nodes([Node("a", 4, 2**40, others=OthersUse(vcpus=4))])
    made.put(asks)
    assert decided(made, asks) == []
    assert made.node_statuses()[0].others.vcpus == 4
    made.set_nodes([Node("a", 4, 2**40, (("NVIDIA_L4", 1),))])
    assert [type(event) for event in decided(made, asks)] == [JobAdmitted]
    assert made.accelerators == ("NVIDIA_L4",)


def test_a_node_that_is_not_heard_of_takes_nothing_and_keeps_what_runs() -> None:
    made = room("a")
    made.set_node_state("a", NodeState.UNHEARD, "no word for 40 s")
    made.put(asks := job(1))
    assert decided(made, asks) == []
    news = made.unfit("a")
    assert news == NodeNews(NodeCondition.GONE, "no word for 40 s", running_stays=True)
    made.set_node_state("a", NodeState.UP, None)
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
    assert isinstance(event, kind) and made.counts(subject.uid, event)
    assert decided(made, subject) == [], "decided once"
    made.put(subject)
    assert not made.counts(subject.uid, event)
    assert decided(made, subject) == [event]
    assert made.counts(subject.uid, event)


class Apart:
    """A tracker all of whose decisions are made in a thread."""

    def __init__(self, *nodes: str) -> None:
        self._delivered: asyncio.Queue[Sequence[Decision]] = asyncio.Queue()
        self.room = CapacityTracker(
            Policy(strict=True), lambda _: None, self._delivered.put_nowait, at_once=0
        )
        self.room.set_nodes([Node(name, 4, 2**40) for name in nodes])

    async def delivered(self) -> list[JobUid]:
        """The jobs about which something was decided; of a decision that `decide` has begun."""
        async with asyncio.timeout(60):
            return [decision.uid for decision in await self._delivered.get()]

    async def decided(self) -> list[JobUid]:
        assert self.room.decide(NOW) == ()
        return await self.delivered()


def numbered(uid: int) -> Job:
    return replace(job(1), uid=JobUid(uid), name=replace(job(1).name, job_id=str(uid)))


async def test_what_changes_during_a_decision_is_seen_at_once_and_decided_about_after_it() -> None:
    """ADR 12: what still holds of a decision counts, and no more."""
    scene = Apart("a", "b")
    first, second, third = numbered(7), numbered(8), numbered(9)
    for placed in (first, second):
        scene.room.put(placed)
    assert scene.room.decide(NOW) == ()
    scene.room.put(third)
    scene.room.put(second)  # again, as it is
    scene.room.set_node_state("b", NodeState.GONE, "gone")
    assert scene.room.decide(NOW) == (), "one at a time"
    assert scene.room.queue_length == 3
    assert [status.replicas for status in scene.room.node_statuses()] == [(), ()]
    assert await scene.delivered() == [first.uid]
    assert scene.room.queue_length == 2
    assert await scene.decided() == []
    waiting = scene.room.why(third.uid, NOW)
    assert waiting is not None and waiting.reason is WaitReason.CAPACITY


async def test_nothing_of_a_preflight_is_seen_and_it_is_answered_beside_decisions() -> None:
    scene = Apart("a")
    answers = [asyncio.create_task(scene.room.preflight(numbered(7), NOW)) for _ in range(3)]
    await asyncio.sleep(0)
    answers[1].cancel()
    assert scene.room.queue_length == 0
    assert scene.room.position(JobUid(7)) == 0
    scene.room.put(numbered(8))
    assert await scene.decided() == [8]
    assert (await answers[0]).places == ((str(PRIMARY), "a"),)
    assert await answers[2]


async def test_preflights_that_wait_are_refused_when_the_service_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene, answer, preflight = Apart("a"), threading.Event(), explaining.preflight

    def answered(snapshot: Snapshot, gang: GangRequest, now: Nanos) -> explaining.Preflight:
        assert answer.wait(60)
        return preflight(snapshot, gang, now)

    monkeypatch.setattr(explaining, "preflight", answered)
    first, second = (asyncio.create_task(scene.room.preflight(job(1), NOW)) for _ in range(2))
    await asyncio.sleep(0)
    scene.room.refuse(Unavailable("it stops"))
    answer.set()
    assert (await first).admitted
    with pytest.raises(Unavailable):
        await second


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
    return replace(made, uid=JobUid(uid), name=name, created=created, updated=created)


@pytest.mark.parametrize("seed", range(12))
def test_one_more_behind_those_who_wait_is_decided_as_if_all_were_looked_at(seed: int) -> None:
    """ADR 12: who comes behind one of the same shape for whom there is no room is not looked at."""
    draw, now = random.Random(seed), NOW
    policy = Policy(
        strict=draw.random() < 0.7, max_replicas=3, patience=draw.choice((20, 600)) * SECOND
    )
    alarms: list[int] = []
    ours = CapacityTracker(policy, alarms.append, lambda _: None)
    theirs = CapacityTracker(policy, lambda _: None, lambda _: None)
    for tracker in (ours, theirs):
        tracker.set_nodes([Node("a", 8, 2**40), Node("b", 6, 2**40)])
    live: list[JobUid] = []
    for uid in range(1, 60):
        now += draw.choice((0, 1, 30)) * SECOND
        if live and draw.random() < 0.25:
            gone = live.pop(draw.randrange(len(live)))
            for job in (ours, theirs):
                job.forget(gone)
        else:
            live.append(JobUid(uid))
            came = drawn(draw, uid)
            for job in (ours, theirs):
                job.put(came)
        if any(at <= now for at in alarms):
            alarms.clear()
            ours.time_passed()
        theirs.time_passed()  # As if something had changed each time: all are looked at.
        assert ours.decide(now) == theirs.decide(now)
        # From then on only who looks at all knows for whom something is reserved, who counts first.
        is_reserved = now >= CREATED - 5 * SECOND + policy.patience
        for waiting in () if is_reserved else live:
            assert ours.position(waiting) == theirs.position(waiting)
