"""End, restart and abandonment of the reducers of a job (spec/failures#retries)."""

from tests.unit.jobs import PRIMARY, REDUCER, SECOND, WORKER, Life, exit_record, job
from trainshed.core.job import Scheduling
from trainshed.core.lifecycle.events import (
    JobAdmitted,
    PauseOver,
    RuntimePrepared,
    StartReplicas,
    StopReplicas,
)
from trainshed.core.lifecycle.machine import deadlines, step
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaStarted
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.lifecycle.transition import instructions
from trainshed.core.names import ReplicaId


def test_crashing_reducer_restarts_with_increasing_delays() -> None:
    """spec/reduction#losses: reducers have their own rate limit. The first restart, and any restart after a
    long life, is immediate. A reducer that keeps crashing is abandoned within a minute."""
    life = Life(job(1, 1, 1, reducers=True)).up()
    subject, began, now = life.job, life.now, life.now
    pauses: list[float] = []
    for incarnation in range(1, 22):
        which = (1, REDUCER, incarnation)
        subject = step(subject, ReplicaStarted(*which, now), now).job
        transition = step(subject, ReplicaExited(*which, exit_record(2, ended=now)), now)
        subject = transition.job
        for due in deadlines(subject):
            if isinstance(due.event, PauseOver):
                assert instructions(subject) == ()
                assert (
                    f" is restarted after {(due.at - now) / SECOND:g} second"
                    in transition.timeline[-1].message
                )
                pauses.append((due.at - now) / SECOND)
                now = due.at
                subject = step(subject, due.event, now).job
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, *([2.0] * 14)]
    assert subject.replicas[2].state is ReplicaState.EXITED
    assert now - began < 60 * SECOND


def test_cancelled_job_ends_without_waiting_for_a_delayed_reducer_restart() -> None:
    """spec/lifecycle#cancel: the delayed incarnation never starts."""
    life = Life(job(1, 1, 1, reducers=True)).up()
    life.exits(REDUCER, 2).loses(REDUCER, "it never came up")
    assert life.replica(REDUCER).not_before
    life.cancel()
    (stop,) = instructions(life.job)
    assert stop == StopReplicas(1, ((REDUCER, 3),))
    assert life.up().job.state is JobState.CANCELLED


def test_rarely_lost_reducer_has_unlimited_restarts() -> None:
    """spec/failures#budgets: reducers have their own rate limit instead of a budget of the attempt."""
    life = Life(job(1, 1, 1, reducers=True, scheduling=Scheduling(disable_retries=True))).up()
    for _ in range(50):
        life.now += 4 * SECOND
        life.loses(REDUCER, by_service=True)
        replica = life.replica(REDUCER)
        started = StartReplicas(1, ((REDUCER, replica.incarnation),))
        assert instructions(life.job) == (started,), "the reducer ran long enough, so it restarts immediately"
        life.up()
    assert life.replica(REDUCER).incarnation == 51
    assert (life.job.state, life.job.attempt) == (JobState.RUNNING, 1)


def test_exit_code_of_a_reducer_is_ignored_after_the_primary_ended() -> None:
    """spec/lifecycle#success: the exit of the primary decides, regardless of other exit codes."""
    life = Life(job(1, 1, 2, reducers=True)).up().exits(WORKER).exits(PRIMARY)
    life.exits(REDUCER, 1, stopped=True).exits(ReplicaId(2, 1), 0, stopped=True)
    assert (life.job.state, life.job.error) == (JobState.SUCCEEDED, None)


def test_job_runs_without_a_reducer_that_cannot_start() -> None:
    """spec/failures#lost-replicas: the job continues. spec/lifecycle#start: it is RUNNING when all remaining
    replicas have started."""
    life = Life(job(1, 0, 1, reducers=True))
    life.see(JobAdmitted(((PRIMARY, "a"), (REDUCER, "b"))), RuntimePrepared(1))
    for _ in range(21):
        life.loses(REDUCER, "it cannot bind its port")
    assert life.replica(REDUCER).state is ReplicaState.LOST
    life.see(ReplicaStarted(1, PRIMARY, 1, life.now))
    assert life.job.state is JobState.RUNNING
