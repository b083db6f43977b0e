"""Every state that a job of two replicas can get into, by any order of all that can happen to it
(spec/lifecycle#states).

Budgets are lowered so that all of it is walked: one restart, one retry by rule, two attempts. Events are made
from the state: reports of its current attempt and incarnations, and late ones of earlier ones, which must
change nothing.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest
from msgspec.structs import replace

from tests.soaks import SOAKS
from tests.unit.jobs import CREATED, PRIMARY, SECOND, WORKER, exited, job
from trainshed.core.failure.evidence import Cause
from trainshed.core.failure.rules import Action
from trainshed.core.failure.table import RULES
from trainshed.core.job import ExitRecord
from trainshed.core.lifecycle.events import (
    CancelCause,
    CancelRequested,
    CapacityRefused,
    DrillLanded,
    DrillTriggered,
    Event,
    JobAdmitted,
    NodeLeft,
    Preempted,
    PreparationFailed,
    ReleaseSlots,
    ReplicaPlaced,
    RuntimePrepared,
    StopReplicas,
)
from trainshed.core.lifecycle.machine import step
from trainshed.core.lifecycle.records import Drill, DrillKind, Job, Replica
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost, ReplicaStarted
from trainshed.core.lifecycle.states import AttemptState, JobState, ReplicaState
from trainshed.core.lifecycle.transition import FailurePolicy, instructions
from trainshed.core.names import ReplicaId

NOW = CREATED + 100 * SECOND
BEFORE, AFTER = NOW - SECOND, NOW + SECOND
POLICY = FailurePolicy(
    tuple(
        replace(r, restarts=min(r.restarts, 1), retries=min(r.retries, 1), back_off=())
        for r in RULES
    ),
    max_attempts=2,
)
MOST_STATES = 50_000
PLACES = JobAdmitted(((PRIMARY, "a"), (WORKER, "b")))
HAS_PROCESSES = (AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING)
DECISIONS = (JobAdmitted, CapacityRefused)
"""What the scheduler says in the turn in which it decides, once; everything else is a report, and may come
twice."""

OWN = exited(0, ended=BEFORE), exited(1, ended=BEFORE), exited(139, ended=BEFORE)
KILLED = exited(signal=9, ended=BEFORE)
LATE = exited(0, ended=AFTER)
STOPPED = exited(0, ended=AFTER, stopped=True)

DIFFERENT = (
    *((DrillKind.KILL, target) for target in (PRIMARY, WORKER)),
    (DrillKind.MAINTENANCE, PRIMARY),
    (DrillKind.PREEMPT, WORKER),
)

Making = Callable[[Job], Iterator[Event]]


def anything(subject: Job) -> Iterator[Event]:
    """All that can happen to the job as it is."""
    attempt, phase = subject.attempt, subject.phase
    yield CancelRequested(CancelCause.USER, NOW)
    if phase is AttemptState.WAITING:
        yield PLACES
        yield CapacityRefused("no node")
    if phase is AttemptState.PREPARING:
        yield RuntimePrepared(attempt)
        yield PreparationFailed(attempt, "no such package", cause=Cause.PACKAGE)
    if phase in (AttemptState.PREPARING, AttemptState.STARTING, AttemptState.RUNNING):
        yield PreparationFailed(attempt, "no disk", cause=Cause.SERVICE)
        yield PreparationFailed(attempt, "no such node", cause=Cause.REJECTED)
        yield Preempted("another")
        # It doubles the states; with fewer other events it is walked below.
        if SOAKS:
            yield from spent(subject)
    for replica in subject.replicas if subject.is_placed else ():
        if replica.node in ("a", "b"):
            yield NodeLeft(replica.node, "it is drained")
        if not replica.node and not replica.state.is_over:
            yield ReplicaPlaced(attempt, replica.id, replica.incarnation, "c")
            yield CapacityRefused("no other node")
        if phase in HAS_PROCESSES and replica.node and not replica.state.is_over:
            yield from reports(subject, replica)


def spent(subject: Job) -> Iterator[Event]:
    """Of what a project or person may have, once."""
    if "budget_used_up" not in dict(subject.retries):
        yield Preempted("a budget", Cause.BUDGET)


def reports(subject: Job, replica: Replica) -> Iterator[Event]:
    """What an engine may say of an incarnation that is not over."""
    which = (subject.attempt, replica.id, replica.incarnation)
    if not replica.started:
        yield ReplicaStarted(*which, BEFORE)
    yield ReplicaLost(*which, "its shim is gone")
    if subject.phase is AttemptState.STOPPING:
        yield ReplicaExited(*which, STOPPED)
        if replica.id.is_primary:
            yield ReplicaExited(*which, LATE)
            yield ReplicaExited(*which, OWN[0])
            yield ReplicaExited(*which, OWN[1])
        return
    if not replica.started:
        yield ReplicaLost(*which, "no room for a mount", by_service=True)
    for record in (*OWN, KILLED, *((STOPPED,) if replica.leaving else ())):
        yield ReplicaExited(*which, record)


def few(subject: Job) -> Iterator[Event]:
    """Enough for a job to go through its whole life, for walks with a drill."""
    for event in anything(subject):
        match event:
            case CapacityRefused() | Preempted() | NodeLeft() | PreparationFailed():
                continue
            case ReplicaLost(by_service=True) | ReplicaExited(exit=ExitRecord(exit_code=1)):
                continue
            case _:
                yield event
    for drill in subject.drills:
        yield DrillTriggered(drill.number, NOW)
        if drill.fired:
            yield DrillLanded(drill.number)


def few_and_spent(subject: Job) -> Iterator[Event]:
    """For the walk with a budget that is used up."""
    yield from few(subject)
    if subject.phase in (AttemptState.PREPARING, AttemptState.STARTING, AttemptState.RUNNING):
        yield from spent(subject)


def stale(subject: Job) -> Iterator[Event]:
    """Reports of what was before."""
    yield RuntimePrepared(subject.attempt - 1)
    yield PreparationFailed(subject.attempt - 1, "late", cause=Cause.PACKAGE)
    for replica in subject.replicas:
        for attempt, incarnation in (
            (subject.attempt - 1, replica.incarnation),
            (subject.attempt, replica.incarnation - 1),
        ):
            yield ReplicaStarted(attempt, replica.id, incarnation, NOW)
            yield ReplicaExited(attempt, replica.id, incarnation, OWN[1])
            yield ReplicaLost(attempt, replica.id, incarnation, "late")


@dataclass(frozen=True, slots=True)
class Walk:
    """`states`: one of each kind that was reached. `ways`: for each, the positions of what may follow."""

    states: list[Job]
    ways: list[set[int]]


def walk(first: Job, making: Making) -> Walk:
    """Go everywhere, and check each state and each way. Raises IllegalTransition, with the story, if any
    order of events leads to what can never be."""
    states, ways = [first], list[set[int]]()
    known: dict[Hashable, int] = {kind_of(first): 0}
    while len(ways) < len(states):
        subject = states[len(ways)]
        ways.append(set())
        # What comes late or twice is tried in every ninth state; `./dev test-all` does it in each.
        thorough = SOAKS or len(ways) % 9 == 0
        check_state(subject, thorough)
        for event in dict.fromkeys(making(subject)) if not subject.state.is_final else ():
            following = step(subject, event, NOW, POLICY).job
            check_way(subject, event, following)
            if thorough and not isinstance(event, DECISIONS):
                again = step(following, event, NOW, POLICY).job
                assert again == following, f"twice is not once: {event}"
            position = known.setdefault(kind_of(following), len(states))
            if position == len(states):
                states.append(following)
            ways[-1].add(position)
        assert len(states) < MOST_STATES, "the budgets of this walk are too high"
    return Walk(states, ways)


def kind_of(subject: Job) -> Hashable:
    """What the future of a job depends on: states of one kind are walked once. How a replica that is over
    ended, by which messages the job ends and which nodes are to be avoided is history; so are retries in the
    last attempt and budgets once the end is decided. Which of its choices it runs by is the scheduler's."""
    drills = tuple((d.is_armed, d.done, d.attempt, d.incarnation) for d in subject.drills)
    job_is = (subject.state, subject.phase, subject.started > 0)
    if subject.state.is_final:
        return job_is
    replicas = tuple((r.state, r.started > 0, r.exit is not None, r.node) for r in subject.replicas)
    if subject.outcome:
        return (*job_is, replicas, drills, subject.outcome.state, subject.outcome.at)
    if subject.phase is AttemptState.WAITING:
        return (*job_is, drills, subject.attempt, frozenset(subject.retries))
    is_last = counting(subject) == POLICY.max_attempts
    budgets = (subject.attempt, is_last or frozenset(subject.retries))
    leaving = tuple(bool(r.leaving) for r in subject.replicas)
    if subject.retry:
        return (*job_is, replicas, drills, budgets, leaving, subject.retry)
    spent = tuple((r.incarnation, r.restarts) for r in subject.replicas)
    return (*job_is, replicas, drills, budgets, leaving, spent)


def counting(subject: Job) -> int:
    """How many of its attempts count."""
    return subject.attempt - dict(subject.retries).get("budget_used_up", 0)


def check_state(subject: Job, thorough: bool) -> None:
    alive = [r for r in subject.replicas if not r.state.is_over]
    demanded = instructions(subject)
    assert counting(subject) <= POLICY.max_attempts
    assert all(many <= 1 for _, many in subject.retries)
    assert all(many <= 1 for r in subject.replicas for _, many in r.restarts)
    if subject.state.is_final:
        assert not alive, "an end is published while something lives"
        assert subject.phase is AttemptState.OVER
        assert subject.ended
        assert (subject.error is None) == (subject.state is JobState.SUCCEEDED)
        assert demanded == ((ReleaseSlots(subject.attempt),) if subject.attempt else ())
        return
    for late in stale(subject) if thorough else ():
        assert step(subject, late, NOW, POLICY).job is subject, late
    assert not subject.ended
    assert subject.outcome is not None or subject.state is not JobState.CANCELLING
    assert subject.started or subject.state is not JobState.RUNNING
    if subject.phase is AttemptState.WAITING:
        assert not alive, "its room is given back while something lives"
        return
    assert demanded or alive, "the job is stuck"
    if subject.phase is AttemptState.STOPPING:
        assert alive, "nothing lives, and yet it is not over"
        assert (subject.outcome is None) != (subject.retry is None)
        (stop,) = demanded
        assert isinstance(stop, StopReplicas)
        assert set(stop.waiting) == {(r.id, r.incarnation) for r in alive if not r.started}
    else:
        assert (subject.outcome, subject.retry) == (None, None)


def check_way(subject: Job, event: Event, following: Job) -> None:
    assert following.attempt in (subject.attempt, subject.attempt + 1)
    assert subject.started in (0, following.started), "startTime stays the first"
    if following.attempt == subject.attempt:
        for before, after in zip(subject.replicas, following.replicas, strict=True):
            again = after.incarnation - before.incarnation
            assert again in (0, 1)
            assert not again or after.state is ReplicaState.WAITING
    if isinstance(event, CancelRequested):
        assert following.outcome is not None, "an accepted cancel is lost"
        assert following.outcome.state is JobState.CANCELLED or any(
            r.id.is_primary and r.exit for r in subject.replicas
        )
    elif subject.outcome and subject.outcome.state is JobState.CANCELLED:
        match event:
            case ReplicaExited(replica=replica, exit=record) if replica.is_primary:
                assert following.outcome == subject.outcome or record.ended <= NOW
            case _:
                assert following.outcome == subject.outcome


@cache
def whole_life() -> Walk:
    return walk(job(1, 1), anything)


@cache
def budgeted() -> Walk:
    return walk(job(1, 1), few_and_spent)


@cache
def drilled(kind: DrillKind, target: ReplicaId) -> Walk:
    drill = Drill(1, kind, target, ordered=CREATED, at_line="step 1")
    return walk(replace(job(1, 1), drills=(drill,)), few)


def check_ends(walked: Walk) -> None:
    """From every state an end can be reached, and all three of them are."""
    before: dict[int, list[int]] = {}
    for position, ways in enumerate(walked.ways):
        for following in ways:
            before.setdefault(following, []).append(position)
    todo = [i for i, subject in enumerate(walked.states) if subject.state.is_final]
    assert {walked.states[i].state for i in todo} == {state for state in JobState if state.is_final}
    ending = set(todo)
    while todo:
        new = set(before.get(todo.pop(), ())) - ending
        ending |= new
        todo += new
    assert len(ending) == len(walked.states)


def test_every_order_of_all_that_can_happen_keeps_what_is_promised() -> None:
    """spec/lifecycle#cancel, spec/failures#budgets, spec/invariants#durability: never stuck, no end while
    something lives, no cancel lost, no budget exceeded, numbers fence, what is reported twice or late changes
    nothing, every job ends."""
    check_ends(whole_life())
    check_ends(budgeted())


@pytest.mark.parametrize(
    # To the machine one fault of a replica is like another, and so is one of an attempt.
    ("kind", "target"),
    [
        pytest.param(
            kind,
            target,
            id=f"{kind}-{target}",
            marks=[] if (kind, target) in DIFFERENT else [pytest.mark.soak],
        )
        for kind in DrillKind
        for target in (PRIMARY, WORKER)
    ],
)
def test_a_drill_at_any_moment_keeps_what_is_promised(kind: DrillKind, target: ReplicaId) -> None:
    """spec/operations#drills: likewise, with a drill that may fire at any moment."""
    drills = drilled(kind, target)
    check_ends(drills)
    assert any(drill.done for subject in drills.states for drill in subject.drills)


def test_the_walk_meets_every_state_and_every_rule() -> None:
    """What is not met is not tested."""
    states = [*whole_life().states, *budgeted().states]
    assert {subject.state for subject in states} == set(JobState)
    assert {subject.phase for subject in states} == set(AttemptState)
    assert {r.state for subject in states for r in subject.replicas} == set(ReplicaState)
    used = {name for subject in states for name, _ in subject.retries}
    # Ways of being lost that only rules tell apart would multiply the states, and show nothing else.
    alike = {"node_failed", "agent_lost", "pod_evicted", "cluster_preempted"}
    assert (
        used
        == {rule.name for rule in POLICY.rules if rule.retries or rule.action is Action.WAIT}
        - alike
    )
