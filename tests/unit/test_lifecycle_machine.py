"""The life of a job (spec/lifecycle#cancel): states, success, cancels, time limits and deadlines.

See test_lifecycle_failures for failures.
"""

import pytest

from tests.unit.jobs import CREATED, PRIMARY, SECOND, WORKER, Life, job
from trainshed.core.job import DEFAULT_TIMEOUT, Scheduling
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, JobAdmitted, RuntimePrepared
from trainshed.core.lifecycle.machine import deadlines
from trainshed.core.lifecycle.replica_events import ReplicaStarted
from trainshed.core.lifecycle.states import JobState

PLACES = JobAdmitted(((PRIMARY, "a"), (WORKER, "b")))
HOUR = 3600 * SECOND


def test_end_time_of_a_job_is_the_end_of_the_last_program() -> None:
    """spec/lifecycle#end: the service may receive the report late. A time in the future is ignored."""
    life = Life(job(1, 1)).up()
    ended = life.now + SECOND
    life.now += HOUR
    life.exits(PRIMARY, ended=ended).exits(WORKER, ended=ended + 2 * SECOND)
    assert life.job.state is JobState.SUCCEEDED
    assert (life.job.ended, life.timeline[-1].at) == (ended + 2 * SECOND, life.now)
    ahead = Life(job(1)).up()
    ahead.exits(PRIMARY, ended=ahead.now + HOUR)
    assert ahead.job.ended == ahead.now
    lost = Life(job(1, 1)).up()
    lost.exits(PRIMARY, ended=lost.now).loses(WORKER)
    assert lost.job.ended == lost.now, "the end time of a lost replica is unknown"


def test_queued_job_has_a_wait_deadline_and_running_job_a_running_deadline() -> None:
    """spec/queue#waiting: maxWaitTime starts at creation, and the running limit starts at the first RUNNING
    state."""
    life = Life(job(1, scheduling=Scheduling(timeout=HOUR, max_wait=1800 * SECOND)))
    (wait,) = deadlines(life.job)
    assert wait.event == CancelRequested(CancelCause.MAX_WAIT, CREATED + 1800 * SECOND)
    life.up()
    (limit,) = deadlines(life.job)
    assert limit.event == CancelRequested(CancelCause.TIMEOUT, life.job.started + HOUR)
    life.exits()
    assert deadlines(life.job) == ()


def test_retry_of_a_job_does_not_restart_the_running_limit_or_the_maximum_wait() -> None:
    """spec/lifecycle#time-limits: after a retry, the state is PREPARING and startTime is the first start.
    maxWaitTime does not apply again."""
    life = Life(job(1, scheduling=Scheduling(max_wait=1800 * SECOND))).up()
    first = life.job.started
    life.exits(PRIMARY, 139)
    assert (life.job.state, life.job.started) == (JobState.PREPARING, first)
    causes = {d.event.cause: d.at for d in deadlines(life.job) if isinstance(d.event, CancelRequested)}
    assert causes == {CancelCause.TIMEOUT: first + DEFAULT_TIMEOUT}
    life.up()
    assert (life.job.state, life.job.started, life.job.attempt) == (JobState.RUNNING, first, 2)


def test_job_that_runs_when_the_maximum_wait_expires_continues() -> None:
    """spec/lifecycle#cancel: maxWaitTime only cancels a job that is not RUNNING at that time. The deadline
    and the last start may be reported together."""
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
def test_cancelled_job_error_contains_the_reason(cause: CancelCause, words: str) -> None:
    """spec/failures#rules: a cancelled job has code 1 and the reason in its message."""
    limits = Scheduling(max_wait=1800 * SECOND, timeout=2_592_000 * SECOND)
    life = Life(job(1, scheduling=limits)).cancel(cause)
    assert life.job.state is JobState.CANCELLED
    assert life.job.error is not None and life.job.error.code == 1
    assert words in life.job.error.message
