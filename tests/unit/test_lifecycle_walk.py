"""Model check: all states of a job with two replicas, for any order of events (spec/lifecycle#states).

Budgets are reduced to one restart, one retry per rule and two attempts, so that the walk covers all states.
Each state generates its events: reports of the current attempt and incarnations, and late reports of earlier
ones, which must not change anything.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest
from msgspec.structs import replace

from tests.soaks import SOAKS
from tests.unit.jobs import CREATED, PRIMARY, SECOND, WORKER, exit_record, job
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
    tuple(replace(r, restarts=min(r.restarts, 1), retries=min(r.retries, 1), back_off=()) for r in RULES),
    max_attempts=2,
)
MAX_STATES = 50_000
PLACES = JobAdmitted(((PRIMARY, "a"), (WORKER, "b")))
HAS_PROCESSES = (AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING)
DECISIONS = (JobAdmitted, CapacityRefused)
"""Decisions, which the scheduler reports exactly once. All other events are reports, and may arrive twice."""

OWN = exit_record(0, ended=BEFORE), exit_record(1, ended=BEFORE), exit_record(139, ended=BEFORE)
KILLED = exit_record(signal=9, ended=BEFORE)
LATE = exit_record(0, ended=AFTER)
STOPPED = exit_record(0, ended=AFTER, stopped=True)

DIFFERENT = (
    *((DrillKind.KILL, target) for target in (PRIMARY, WORKER)),
    (DrillKind.MAINTENANCE, PRIMARY),
    (DrillKind.PREEMPT, WORKER),
)

Making = Callable[[Job], Iterator[Event]]


def all_events(subject: Job) -> Iterator[Event]:
    """Yield all possible events of the job in its current state."""
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
        # This event doubles the number of states. Another walk below covers it with fewer other events.
        if SOAKS:
            yield from budget_events(subject)
    for replica in subject.replicas if subject.is_placed else ():
        if replica.node in ("a", "b"):
            yield NodeLeft(replica.node, "it is drained")
        if not replica.node and not replica.state.is_over:
            yield ReplicaPlaced(attempt, replica.id, replica.incarnation, "c")
            yield CapacityRefused("no other node")
        if phase in HAS_PROCESSES and replica.node and not replica.state.is_over:
            yield from reports(subject, replica)


def budget_events(subject: Job) -> Iterator[Event]:
    """Yield the event that a usage budget of the project or user is used up, once."""
    if "budget_used_up" not in dict(subject.retries):
        yield Preempted("a budget", Cause.BUDGET)


def reports(subject: Job, replica: Replica) -> Iterator[Event]:
    """Yield all possible engine reports about a live incarnation."""
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


def basic_events(subject: Job) -> Iterator[Event]:
    """Yield the events of a complete life of a job, for walks with a drill."""
    for event in all_events(subject):
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


def basic_and_budget_events(subject: Job) -> Iterator[Event]:
    """Yield the events for the walk with a used-up usage budget."""
    yield from basic_events(subject)
    if subject.phase in (AttemptState.PREPARING, AttemptState.STARTING, AttemptState.RUNNING):
        yield from budget_events(subject)


def stale_reports(subject: Job) -> Iterator[Event]:
    """Yield late reports about earlier attempts and incarnations."""
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
    """The reached states, one of each kind, and the positions of the possible successors of each state."""

    states: list[Job]
    successors: list[set[int]]


def walk(first: Job, making: Making) -> Walk:
    """Visit all reachable states, and check each state and each transition.

    Raises:
        IllegalTransition: An order of events leads to an impossible state. The error contains the history.
    """
    states, successors = [first], list[set[int]]()
    known: dict[Hashable, int] = {kind_of(first): 0}
    while len(successors) < len(states):
        subject = states[len(successors)]
        successors.append(set())
        # Late and duplicate reports are tested in every ninth state, and with `./dev test-all` in each.
        thorough = SOAKS or len(successors) % 9 == 0
        check_state(subject, thorough)
        for event in dict.fromkeys(making(subject)) if not subject.state.is_final else ():
            following = step(subject, event, NOW, POLICY).job
            check_transition(subject, event, following)
            if thorough and not isinstance(event, DECISIONS):
                again = step(following, event, NOW, POLICY).job
                assert again == following, f"twice is not once: {event}"
            position = known.setdefault(kind_of(following), len(states))
            if position == len(states):
                states.append(following)
            successors[-1].add(position)
        assert len(states) < MAX_STATES, "the budgets of this walk are too high"
    return Walk(states, successors)


def kind_of(subject: Job) -> Hashable:
    """Return the key of a job that determines its future. States with equal keys are visited once.

    The key excludes history: how finished replicas ended, messages, and nodes to avoid. In the last attempt
    it excludes retries, and after the decision about the end it excludes budgets. It also excludes the
    scheduling option that the scheduler has chosen.
    """
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
    used_restarts = tuple((r.incarnation, r.restarts) for r in subject.replicas)
    return (*job_is, replicas, drills, budgets, leaving, used_restarts)


def counting(subject: Job) -> int:
    """Return the number of attempts that count towards the limit."""
    return subject.attempt - dict(subject.retries).get("budget_used_up", 0)


def check_state(subject: Job, thorough: bool) -> None:
    alive = [r for r in subject.replicas if not r.state.is_over]
    demanded = instructions(subject)
    assert counting(subject) <= POLICY.max_attempts
    assert all(many <= 1 for _, many in subject.retries)
    assert all(many <= 1 for r in subject.replicas for _, many in r.restarts)
    if subject.state.is_final:
        assert not alive, "the end is published while a replica runs"
        assert subject.phase is AttemptState.OVER
        assert subject.ended
        assert (subject.error is None) == (subject.state is JobState.SUCCEEDED)
        assert demanded == ((ReleaseSlots(subject.attempt),) if subject.attempt else ())
        return
    for late in stale_reports(subject) if thorough else ():
        assert step(subject, late, NOW, POLICY).job is subject, late
    assert not subject.ended
    assert subject.outcome is not None or subject.state is not JobState.CANCELLING
    assert subject.started or subject.state is not JobState.RUNNING
    if subject.phase is AttemptState.WAITING:
        assert not alive, "the capacity is released while a replica runs"
        return
    assert demanded or alive, "the job is stuck"
    if subject.phase is AttemptState.STOPPING:
        assert alive, "no replica runs, but the job has not finished"
        assert (subject.outcome is None) != (subject.retry is None)
        (stop,) = demanded
        assert isinstance(stop, StopReplicas)
        assert set(stop.waiting) == {(r.id, r.incarnation) for r in alive if not r.started}
    else:
        assert (subject.outcome, subject.retry) == (None, None)


def check_transition(subject: Job, event: Event, following: Job) -> None:
    assert following.attempt in (subject.attempt, subject.attempt + 1)
    assert subject.started in (0, following.started), "startTime is the first start"
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
    return walk(job(1, 1), all_events)


@cache
def walk_with_budget() -> Walk:
    return walk(job(1, 1), basic_and_budget_events)


@cache
def walk_with_drill(kind: DrillKind, target: ReplicaId) -> Walk:
    drill = Drill(1, kind, target, ordered=CREATED, at_line="step 1")
    return walk(replace(job(1, 1), drills=(drill,)), basic_events)


def check_ends(walked: Walk) -> None:
    """Check that every state can reach a final state, and that all three final states occur."""
    before: dict[int, list[int]] = {}
    for position, successors in enumerate(walked.successors):
        for following in successors:
            before.setdefault(following, []).append(position)
    todo = [i for i, subject in enumerate(walked.states) if subject.state.is_final]
    assert {walked.states[i].state for i in todo} == {state for state in JobState if state.is_final}
    ending = set(todo)
    while todo:
        new = set(before.get(todo.pop(), ())) - ending
        ending |= new
        todo += new
    assert len(ending) == len(walked.states)


def test_job_invariants_hold_for_every_order_of_events() -> None:
    """spec/lifecycle#cancel, spec/failures#budgets, spec/invariants#durability: every job ends, and not
    before its replicas. No cancel is lost and no budget exceeded. Late and duplicate reports are ignored."""
    check_ends(whole_life())
    check_ends(walk_with_budget())


@pytest.mark.parametrize(
    # The state machine treats all faults of a replica alike, and all faults of an attempt alike.
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
def test_job_invariants_hold_for_a_fault_drill_at_any_time(kind: DrillKind, target: ReplicaId) -> None:
    """spec/operations#drills: the invariants also hold if a drill triggers at any time."""
    drills = walk_with_drill(kind, target)
    check_ends(drills)
    assert any(drill.done for subject in drills.states for drill in subject.drills)


def test_job_event_walk_reaches_every_state_and_failure_rule() -> None:
    """The walk only tests states and rules that it reaches."""
    states = [*whole_life().states, *walk_with_budget().states]
    assert {subject.state for subject in states} == set(JobState)
    assert {subject.phase for subject in states} == set(AttemptState)
    assert {r.state for subject in states for r in subject.replicas} == set(ReplicaState)
    used = {name for subject in states for name, _ in subject.retries}
    # Only rules distinguish the kinds of loss. Separate events would multiply the states without benefit.
    alike = {"node_failed", "agent_lost", "pod_evicted", "cluster_preempted"}
    assert used == {rule.name for rule in POLICY.rules if rule.retries or rule.action is Action.WAIT} - alike
