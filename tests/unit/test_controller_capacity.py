"""The controller's capacity tracker: a scheduling decision uses capacity from the moment it is made
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


def tracker(*nodes: str, vcpus: int = 4) -> CapacityTracker:
    made = CapacityTracker(Policy(strict=True), lambda _: None, lambda _: None)
    made.set_nodes([Node(name, vcpus, 2**40) for name in nodes])
    return made


def next_decisions(made: CapacityTracker, subject: Job) -> list[Event]:
    """Return the next decisions about a job, as its events."""
    events = [event_of_decision(d, subject) for d in made.decide(NOW) if d.uid == subject.uid]
    return [event for event in events if event is not None]


def test_job_waits_while_programs_outside_the_service_use_the_node() -> None:
    made, asks = tracker("a"), job(1)
    made.set_nodes([Node("a", 4, 2**40, others=OthersUse(vcpus=4))])
    made.put(asks)
    assert next_decisions(made, asks) == []
    assert made.node_statuses()[0].others.vcpus == 4
    made.set_nodes([Node("a", 4, 2**40, (("NVIDIA_L4", 1),))])
    assert [type(event) for event in next_decisions(made, asks)] == [JobAdmitted]
    assert made.accelerators == ("NVIDIA_L4",)


def test_silent_node_gets_no_new_jobs_and_keeps_running_jobs() -> None:
    made = tracker("a")
    made.set_node_state("a", NodeState.UNHEARD, "no word for 40 s")
    made.put(asks := job(1))
    assert next_decisions(made, asks) == []
    news = made.unfit_reason("a")
    assert news == NodeNews(NodeCondition.GONE, "no word for 40 s", running_stays=True)
    made.set_node_state("a", NodeState.UP, None)
    assert [type(event) for event in next_decisions(made, asks)] == [JobAdmitted]


def waiting_job() -> tuple[CapacityTracker, Job]:
    return tracker("a"), job(1)


def job_with_a_lost_replica() -> tuple[CapacityTracker, Job]:
    return tracker("a", "b"), Life(job(1)).see(ON_A, NodeLeft("a", "maintenance")).job


def preempted_job() -> tuple[CapacityTracker, Job]:
    made = tracker("a")
    urgent = job(1)
    made.put(replace(urgent, uid=JobUid(8), name=replace(urgent.name, job_id="8")))
    return made, Life(job(1, scheduling=Scheduling(strategy=Strategy.SPOT))).see(ON_A).job


def job_that_never_fits() -> tuple[CapacityTracker, Job]:
    return tracker("a", vcpus=2), job(1)


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (waiting_job, JobAdmitted),
        (job_with_a_lost_replica, ReplicaPlaced),
        (preempted_job, Preempted),
        (job_that_never_fits, CapacityRefused),
    ],
)
def test_scheduling_decision_is_repeated_only_if_the_job_is_stored_without_the_decision(
    case: Callable[[], tuple[CapacityTracker, Job]], kind: type[Event]
) -> None:
    """spec/queue#gangs: a decision reserves its capacity, so the capacity is allocated only once. If the job
    is stored without the decision, the scheduler decides again."""
    made, subject = case()
    made.put(subject)
    (event,) = next_decisions(made, subject)
    assert isinstance(event, kind) and made.is_valid(subject.uid, event)
    assert next_decisions(made, subject) == [], "there is only one decision"
    made.put(subject)
    assert not made.is_valid(subject.uid, event)
    assert next_decisions(made, subject) == [event]
    assert made.is_valid(subject.uid, event)


class ThreadedTracker:
    """A capacity tracker that makes all its decisions in a thread."""

    def __init__(self, *nodes: str) -> None:
        self._delivered: asyncio.Queue[Sequence[Decision]] = asyncio.Queue()
        self.tracker = CapacityTracker(
            Policy(strict=True), lambda _: None, self._delivered.put_nowait, at_once=0
        )
        self.tracker.set_nodes([Node(name, 4, 2**40) for name in nodes])

    async def wait_for_decisions(self) -> list[JobUid]:
        """Return the jobs with a decision, after the running call of `decide` has finished."""
        async with asyncio.timeout(60):
            return [decision.uid for decision in await self._delivered.get()]

    async def next_decisions(self) -> list[JobUid]:
        assert self.tracker.decide(NOW) == ()
        return await self.wait_for_decisions()


def numbered_job(uid: int) -> Job:
    return replace(job(1), uid=JobUid(uid), name=replace(job(1).name, job_id=str(uid)))


async def test_changes_during_a_scheduling_decision_are_visible_and_cause_a_new_decision() -> None:
    """ADR 12: only the parts of a decision that are still valid take effect."""
    scene = ThreadedTracker("a", "b")
    first, second, third = numbered_job(7), numbered_job(8), numbered_job(9)
    for placed in (first, second):
        scene.tracker.put(placed)
    assert scene.tracker.decide(NOW) == ()
    scene.tracker.put(third)
    scene.tracker.put(second)  # the same job again
    scene.tracker.set_node_state("b", NodeState.GONE, "gone")
    assert scene.tracker.decide(NOW) == (), "only one decision runs at a time"
    assert scene.tracker.queue_length == 3
    assert [status.replicas for status in scene.tracker.node_statuses()] == [(), ()]
    assert await scene.wait_for_decisions() == [first.uid]
    assert scene.tracker.queue_length == 2
    assert await scene.next_decisions() == []
    waiting = scene.tracker.explain_wait(third.uid, NOW)
    assert waiting is not None and waiting.reason is WaitReason.CAPACITY


async def test_preflight_check_does_not_change_capacity_or_block_scheduling() -> None:
    scene = ThreadedTracker("a")
    answers = [asyncio.create_task(scene.tracker.preflight(numbered_job(7), NOW)) for _ in range(3)]
    await asyncio.sleep(0)
    answers[1].cancel()
    assert scene.tracker.queue_length == 0
    assert scene.tracker.position(JobUid(7)) == 0
    scene.tracker.put(numbered_job(8))
    assert await scene.next_decisions() == [8]
    assert (await answers[0]).places == ((str(PRIMARY), "a"),)
    assert await answers[2]


async def test_waiting_preflight_checks_are_rejected_when_the_service_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene, answer, preflight = ThreadedTracker("a"), threading.Event(), explaining.preflight

    def wait_and_preflight(snapshot: Snapshot, gang: GangRequest, now: Nanos) -> explaining.Preflight:
        assert answer.wait(60)
        return preflight(snapshot, gang, now)

    monkeypatch.setattr(explaining, "preflight", wait_and_preflight)
    first, second = (asyncio.create_task(scene.tracker.preflight(job(1), NOW)) for _ in range(2))
    await asyncio.sleep(0)
    scene.tracker.refuse(Unavailable("it stops"))
    answer.set()
    assert (await first).is_admitted
    with pytest.raises(Unavailable):
        await second


def random_job(draw: random.Random, uid: int) -> Job:
    """Return a job of a random shape, project and priority, sometimes with spot or other options."""
    scheduling = Scheduling(
        strategy=draw.choice((Strategy.STANDARD, Strategy.STANDARD, Strategy.SPOT)),
        timeout=draw.choice((600, 3600)) * SECOND,
    )
    made = job(draw.choice((1, 1, 2)), scheduling=scheduling)
    project = draw.choice(("demo", "other"))
    name = replace(made.name, project_id=project, job_id=str(uid))
    # Sometimes the clock moves backwards.
    created = CREATED + (uid - draw.choice((0, 0, 0, 5))) * SECOND
    return replace(made, uid=JobUid(uid), name=name, created=created, updated=created)


@pytest.mark.parametrize("seed", range(12))
def test_skipping_the_plan_for_a_new_waiting_job_gives_the_decisions_of_a_full_plan(seed: int) -> None:
    """ADR 12: the scheduler makes no plan for a new job if an older job of the same shape already waits for
    capacity."""
    draw, now = random.Random(seed), NOW
    policy = Policy(strict=draw.random() < 0.7, max_replicas=3, patience=draw.choice((20, 600)) * SECOND)
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
            came = random_job(draw, uid)
            for job in (ours, theirs):
                job.put(came)
        if any(at <= now for at in alarms):
            alarms.clear()
            ours.time_passed()
        theirs.time_passed()  # Forces a full plan each time.
        assert ours.decide(now) == theirs.decide(now)
        # From then on, only a full plan contains the reservations, and reserved jobs count first.
        is_reserved = now >= CREATED - 5 * SECOND + policy.patience
        for waiting in () if is_reserved else live:
            assert ours.position(waiting) == theirs.position(waiting)
