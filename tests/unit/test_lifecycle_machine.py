"""The life of a job (SPEC §2): stories first, then every reachable state."""

from collections import deque
from dataclasses import replace

import pytest

from tests.unit.jobs import CREATED, SECOND, exited, job
from trainshed.core.lifecycle.events import (
    CancelCause,
    CancelRequested,
    Event,
    JobAdmitted,
    PreparationFailed,
    PrepareRuntime,
    ReleaseSlots,
    ReplicaExited,
    ReplicaLost,
    ReplicaStarted,
    RuntimePrepared,
    StartReplicas,
    StopReplicas,
)
from trainshed.core.lifecycle.machine import deadlines, instructions, step
from trainshed.core.lifecycle.records import Job, JobError
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import Api, ReplicaId
from trainshed.core.specs.model import DEFAULT_TIMEOUT, Scheduling

PRIMARY = ReplicaId(0, 0)
WORKER = ReplicaId(1, 0)
ADMITTED = JobAdmitted(())
PREPARED = RuntimePrepared(1)
NOW = CREATED + 5 * SECOND


def started(replica: ReplicaId, at: int = NOW) -> ReplicaStarted:
    return ReplicaStarted(1, replica, 1, at)


def ended(replica: ReplicaId, code: int = 0, *, at: int = NOW) -> ReplicaExited:
    return ReplicaExited(1, replica, 1, exited(code, ended=at))


def cancelled(at: int = NOW) -> CancelRequested:
    return CancelRequested(CancelCause.USER, at)


def after(subject: Job, *events: Event, now: int = NOW) -> Job:
    for event in events:
        subject = step(subject, event, now).job
    return subject


def running(*counts: int) -> Job:
    subject = job(*counts)
    starts = [started(replica) for replica in subject.spec.replicas()]
    return after(subject, ADMITTED, PREPARED, *starts)


def test_a_job_goes_through_its_states_and_demands_the_next_thing_in_each() -> None:
    """SPEC §2: QUEUED, PREPARING, RUNNING, SUCCEEDED."""
    subject = job(1, 1)
    assert (subject.state, instructions(subject)) == (JobState.QUEUED, ())
    subject = after(subject, ADMITTED)
    assert (subject.state, instructions(subject)) == (JobState.PREPARING, (PrepareRuntime(1),))
    subject = after(subject, PREPARED)
    assert (subject.state, instructions(subject)) == (JobState.PREPARING, (StartReplicas(1),))
    subject = after(subject, started(PRIMARY, NOW), started(WORKER, NOW + 1))
    assert (subject.state, instructions(subject)) == (JobState.RUNNING, ())
    assert subject.started == NOW + 1, "RUNNING begins when the last replica is up"
    subject = after(subject, ended(PRIMARY))
    assert (subject.state, instructions(subject)) == (JobState.RUNNING, (StopReplicas(1),))
    subject = after(subject, ended(WORKER, 143))
    assert (subject.state, instructions(subject)) == (JobState.SUCCEEDED, (ReleaseSlots(1),))
    assert subject.error is None


def test_the_primary_may_end_before_all_replicas_are_up() -> None:
    """SPEC §2, parallel start: straight to the final state, startTime at that moment."""
    subject = after(job(1, 1), ADMITTED, PREPARED, started(PRIMARY), ended(PRIMARY, at=NOW + 7))
    assert subject.state is JobState.PREPARING
    subject = after(subject, ReplicaLost(1, WORKER, 1, "never started"))
    assert subject.state is JobState.SUCCEEDED
    assert subject.started == NOW + 7


def test_a_worker_that_is_done_does_not_end_the_job() -> None:
    """SPEC §2.1: non-primary exits 0, the job goes on."""
    subject = after(running(1, 1), ended(WORKER))
    assert subject.state is JobState.RUNNING
    assert subject.outcome is None


def test_a_worker_that_is_done_before_the_primary_is_up_counts_as_up() -> None:
    subject = after(job(1, 1), ADMITTED, PREPARED, started(WORKER), ended(WORKER), started(PRIMARY))
    assert subject.state is JobState.RUNNING


def test_a_failing_worker_fails_the_job_after_all_are_down() -> None:
    """SPEC §2.1: permanent; all replicas are shut down."""
    subject = after(running(1, 1), ended(WORKER, 3))
    assert subject.state is JobState.RUNNING
    assert instructions(subject) == (StopReplicas(1),)
    subject = after(subject, ended(PRIMARY, 0))
    assert subject.state is JobState.FAILED
    assert subject.error is not None
    assert subject.error.code == 3
    assert subject.error.message.startswith(
        "The replica workerpool1-0 exited with a non-zero status of 3. Termination reason: Error."
    )


def test_a_lost_replica_fails_the_job_and_says_which() -> None:
    subject = after(running(1), ReplicaLost(1, PRIMARY, 1, "its shim is gone"))
    assert subject.state is JobState.FAILED
    assert subject.error is not None
    assert "workerpool0-0 was lost: its shim is gone" in subject.error.message


def test_a_replica_the_service_could_not_run_is_an_internal_error_with_its_cause_told() -> None:
    """SPEC §2.1: the service itself failed; the typed cause stands in the timeline."""
    before = after(job(), ADMITTED, PREPARED)
    result = step(before, ReplicaLost(1, PRIMARY, 1, "no room for a mount", True), NOW)
    ended_job, told = result.job, result.timeline
    assert ended_job.state is JobState.FAILED
    assert ended_job.error == JobError(13, "Internal error occurred for the current attempt")
    assert ended_job.outcome is not None
    assert ended_job.outcome.rule == "internal_error"
    assert (told[0].kind, told[0].message) == (
        "internal_error",
        "The service could not run workerpool0-0: no room for a mount.",
    )


@pytest.mark.parametrize("before", [(), (ADMITTED,)], ids=["queued", "preparing"])
def test_cancel_before_the_launch_ends_at_once(before: tuple[Event, ...]) -> None:
    """SPEC §2: cancel works in every state before the end."""
    subject = after(job(1), *before, cancelled())
    assert subject.state is JobState.CANCELLED
    assert subject.error is not None
    assert subject.error.code == 1


def test_cancel_of_a_running_job_waits_until_nothing_lives() -> None:
    subject = after(running(1, 1), cancelled(), ended(WORKER, 143))
    assert subject.state is JobState.CANCELLING
    subject = after(subject, ended(PRIMARY, 143, at=NOW + 1))
    assert subject.state is JobState.CANCELLED


def test_cancel_wins_over_a_primary_that_ends_well_afterwards() -> None:
    """SPEC §2: after an accepted cancel the final state is CANCELLED ..."""
    subject = after(running(1), cancelled(NOW), ended(PRIMARY, 0, at=NOW + 1))
    assert subject.state is JobState.CANCELLED


def test_cancel_loses_to_a_primary_that_had_already_exited() -> None:
    """... unless the primary had already exited."""
    subject = after(running(1), cancelled(NOW), ended(PRIMARY, 0, at=NOW - 1))
    assert subject.state is JobState.SUCCEEDED
    assert subject.error is None


def test_cancel_while_the_others_are_shut_down_after_success_changes_nothing() -> None:
    subject = after(running(1, 1), ended(PRIMARY), cancelled(NOW + 1), ended(WORKER, 143))
    assert subject.state is JobState.SUCCEEDED


def test_cancel_overrides_a_failure_of_a_worker_that_is_still_winding_down() -> None:
    subject = after(running(1, 1), ended(WORKER, 1), cancelled(NOW + 1), ended(PRIMARY, 143))
    assert subject.state is JobState.CANCELLED


def test_reports_that_come_twice_or_late_change_nothing() -> None:
    """DESIGN §3.2: carrying out, and reporting, twice harms nothing."""
    subject = running(1, 1)
    for event in (started(PRIMARY), PREPARED, ADMITTED, ReplicaExited(2, PRIMARY, 1, exited(1))):
        assert step(subject, event, NOW).job == subject
    done = after(subject, ended(PRIMARY), ended(WORKER))
    assert step(done, ended(PRIMARY, 1), NOW).job == done
    assert step(done, cancelled(), NOW).job == done


def test_a_package_that_cannot_be_installed_is_the_users_failure() -> None:
    subject = after(job(1), ADMITTED, PreparationFailed(1, "no such object gs://b/x", by_user=True))
    assert subject.state is JobState.FAILED
    assert subject.error is not None
    assert subject.error.code == 3
    assert "no such object gs://b/x" in subject.error.message


def test_a_failure_of_the_service_has_the_public_internal_message() -> None:
    """SPEC §2.1, the row of the service's own failures; the typed cause stands on the timeline."""
    outcome = step(
        after(job(1), ADMITTED), PreparationFailed(1, "uv: disk full", by_user=False), NOW
    )
    assert outcome.job.error is not None
    assert (outcome.job.error.code, outcome.job.error.message) == (
        13,
        "Internal error occurred for the current attempt",
    )
    assert "uv: disk full" in [entry.message for entry in outcome.timeline]


def test_a_start_that_turns_out_to_be_impossible_ends_the_job() -> None:
    """Without this it would be PREPARING for ever: no limit of time runs before the first RUNNING."""
    failure = PreparationFailed(1, "there is no node x", by_user=False)
    half = after(job(1, 1), ADMITTED, PREPARED, started(PRIMARY))
    stopping = after(half, failure)
    assert instructions(stopping) == (StopReplicas(1),)
    over = after(stopping, ended(PRIMARY), ReplicaLost(1, WORKER, 1, "never started"))
    assert over.state is JobState.FAILED
    assert over.error is not None
    assert over.error.code == 13
    running = after(half, started(WORKER))
    assert after(running, failure) == running


def test_deadlines_follow_the_state() -> None:
    """SPEC §2: maxWaitTime counts from creation, the running limit from the first RUNNING."""
    waiting = job(1, scheduling=Scheduling(max_wait=1800 * SECOND))
    assert [(d.cause, d.at) for d in deadlines(waiting)] == [
        (CancelCause.MAX_WAIT, CREATED + 1800 * SECOND)
    ]
    up = after(waiting, ADMITTED, PREPARED, started(PRIMARY))
    assert [(d.cause, d.at) for d in deadlines(up)] == [
        (CancelCause.TIMEOUT, NOW + DEFAULT_TIMEOUT)
    ]
    assert deadlines(after(up, ended(PRIMARY))) == ()


def test_a_passed_deadline_cancels_with_its_reason() -> None:
    late = after(
        job(1, scheduling=Scheduling(max_wait=1800 * SECOND)),
        CancelRequested(CancelCause.MAX_WAIT, NOW),
    )
    assert late.state is JobState.CANCELLED
    assert late.error is not None
    assert "maximum wait time of 1800 seconds" in late.error.message


def test_ml_jobs_name_replicas_by_role() -> None:
    subject = job(1, 1, api=Api.ML)
    subject = after(
        subject, ADMITTED, PREPARED, started(PRIMARY), started(WORKER), ended(WORKER, 9)
    )
    subject = after(subject, ended(PRIMARY, 0))
    assert subject.error is not None
    assert subject.error.message.startswith(
        "The replica worker 0 exited with a non-zero status of 9."
    )


ALPHABET: tuple[Event, ...] = (
    ADMITTED,
    PREPARED,
    PreparationFailed(1, "broken", by_user=False),
    started(PRIMARY),
    started(WORKER),
    ended(PRIMARY, 0),
    ended(PRIMARY, 1),
    ended(WORKER, 0),
    ended(WORKER, 1),
    ReplicaLost(1, PRIMARY, 1, "gone"),
    ReplicaLost(1, WORKER, 1, "gone"),
    cancelled(NOW - 1),
    cancelled(NOW + 1),
)


def reachable() -> dict[Job, list[tuple[Event, Job]]]:
    """Every state that a job of two replicas can get into by any order of events, with its successors."""
    first = job(1, 1)
    graph: dict[Job, list[tuple[Event, Job]]] = {}
    todo = deque([first])
    while todo:
        subject = todo.popleft()
        if subject in graph:
            continue
        graph[subject] = [(event, step(subject, event, NOW).job) for event in ALPHABET]
        todo.extend(successor for _, successor in graph[subject])
    return graph


def test_every_reachable_state_is_sound() -> None:
    """All orders of all events of a two-replica job: nothing is lost, nothing is undone."""
    graph = reachable()
    assert len(graph) > 50
    for subject, successors in graph.items():
        alive = [r for r in subject.replicas if not r.state.is_over]
        if subject.state.is_final:
            assert not (subject.launched and alive), "an end is published while something lives"
            assert subject.ended
            assert all(successor == subject for _, successor in successors)
            assert instructions(subject) in ((), (ReleaseSlots(1),))
        else:
            waits_for_scheduler = subject.state is JobState.QUEUED
            assert instructions(subject) or waits_for_scheduler or alive, "the job is stuck"
            assert not (subject.state is JobState.CANCELLING and subject.outcome is None)
        if subject.state is JobState.RUNNING:
            assert subject.started
            assert all(r.state is not ReplicaState.WAITING for r in subject.replicas)
        for event, successor in successors:
            if isinstance(event, CancelRequested) and not subject.state.is_final:
                assert successor.outcome is not None, "an accepted cancel was lost"


def test_every_state_can_reach_an_end() -> None:
    graph = reachable()
    ends = {subject for subject in graph if subject.state.is_final}
    assert {subject.state for subject in ends} == {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.CANCELLED,
    }
    for subject in graph:
        walk = after(
            subject, cancelled(), ended(PRIMARY, 143), ended(WORKER, 143), now=NOW + SECOND
        )
        assert walk.state.is_final


def test_the_same_event_twice_is_the_same_as_once() -> None:
    for successors in reachable().values():
        for event, successor in successors:
            again = step(successor, event, NOW).job
            assert replace(again, updated=0) == replace(successor, updated=0)
