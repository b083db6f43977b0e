"""The life of a job (spec/lifecycle#cancel): states, success, cancels, time limits, reminders. Failures:
test_lifecycle_failures."""

import pytest

from tests.unit.jobs import CREATED, PRIMARY, SECOND, WORKER, Life, job
from trainshed.core.job import DEFAULT_TIMEOUT, Scheduling
from trainshed.core.lifecycle.events import (
    CancelCause,
    CancelRequested,
    JobAdmitted,
    RuntimePrepared,
)
from trainshed.core.lifecycle.machine import deadlines
from trainshed.core.lifecycle.replica_events import ReplicaStarted
from trainshed.core.lifecycle.states import JobState

PLACES = JobAdmitted(((PRIMARY, "a"), (WORKER, "b")))
HOUR = 3600 * SECOND


def test_an_end_that_is_heard_of_late_was_when_the_last_program_ended() -> None:
    """spec/lifecycle#end: the service may have been away meanwhile; a clock that is wrong is not believed."""
    life = Life(job(1, 1)).up()
    ended = life.now + SECOND
    life.now += HOUR
    life.exits(PRIMARY, ended=ended).exits(WORKER, ended=ended + 2 * SECOND)
    assert life.job.state is JobState.SUCCEEDED
    assert (life.job.ended, life.told[-1].at) == (ended + 2 * SECOND, life.now)
    ahead = Life(job(1)).up()
    ahead.exits(PRIMARY, ended=ahead.now + HOUR)
    assert ahead.job.ended == ahead.now
    lost = Life(job(1, 1)).up()
    lost.exits(PRIMARY, ended=lost.now).loses(WORKER)
    assert lost.job.ended == lost.now, "nobody knows when what was lost ended"


def test_deadlines_follow_the_state() -> None:
    """spec/queue#waiting: maxWaitTime counts from creation, the running limit from the first RUNNING."""
    life = Life(job(1, scheduling=Scheduling(timeout=HOUR, max_wait=1800 * SECOND)))
    (wait,) = deadlines(life.job)
    assert wait.event == CancelRequested(CancelCause.MAX_WAIT, CREATED + 1800 * SECOND)
    life.up()
    (limit,) = deadlines(life.job)
    assert limit.event == CancelRequested(CancelCause.TIMEOUT, life.job.started + HOUR)
    life.exits()
    assert deadlines(life.job) == ()


def test_the_running_limit_goes_on_through_a_retry_and_max_wait_does_not_come_back() -> None:
    """spec/lifecycle#time-limits: across retries; the state goes back to PREPARING; startTime stays the
    first; maxWaitTime is not applied again."""
    life = Life(job(1, scheduling=Scheduling(max_wait=1800 * SECOND))).up()
    first = life.job.started
    life.exits(PRIMARY, 139)
    assert (life.job.state, life.job.started) == (JobState.PREPARING, first)
    causes = {
        d.event.cause: d.at for d in deadlines(life.job) if isinstance(d.event, CancelRequested)
    }
    assert causes == {CancelCause.TIMEOUT: first + DEFAULT_TIMEOUT}
    life.up()
    assert (life.job.state, life.job.started, life.job.attempt) == (JobState.RUNNING, first, 2)


def test_a_job_that_is_up_as_its_maximum_wait_ends_runs_on() -> None:
    """spec/lifecycle#cancel, queue: maxWaitTime cancels a job that is not RUNNING by then. The moment and the
    last start may be reported together."""
    limited = Scheduling(max_wait=1800 * SECOND)
    life = Life(job(1, scheduling=limited)).up().cancel(CancelCause.MAX_WAIT)
    assert life.job.state is JobState.RUNNING
    late = Life(job(1, 1, scheduling=limited)).see(PLACES, RuntimePrepared(1))
    late.see(ReplicaStarted(1, PRIMARY, 1, CREATED)).cancel(CancelCause.MAX_WAIT).up()
    assert late.job.state is JobState.CANCELLED


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (CancelCause.MAX_WAIT, "maximum wait time of 1800 seconds"),
        (CancelCause.TIMEOUT, "maximum running time of 2592000 seconds"),
        (CancelCause.USER, "cancelled by the user"),
        (CancelCause.IDLE, "was idle for longer than this service allows"),
    ],
)
def test_a_cancel_says_its_reason(cause: CancelCause, words: str) -> None:
    """spec/failures#rules, last row: CANCELLED, the reason in the message, code 1."""
    limits = Scheduling(max_wait=1800 * SECOND, timeout=2_592_000 * SECOND)
    life = Life(job(1, scheduling=limits)).cancel(cause)
    assert life.job.state is JobState.CANCELLED
    assert life.job.error is not None and life.job.error.code == 1
    assert words in life.job.error.message
