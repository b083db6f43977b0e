"""How a job's reducers end, start again and are given up (spec/failures#retries)."""

from tests.unit.jobs import PRIMARY, REDUCER, SECOND, WORKER, Life, exited, job
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


def test_a_reducer_that_dies_young_is_started_again_after_a_pause_that_grows() -> None:
    """spec/reduction#losses: a rate limit of its own. The first time at once, and always once it has lived;
    given up all the same within the minute."""
    life = Life(job(1, 1, 1, reducers=True)).up()
    subject, began, now = life.job, life.now, life.now
    pauses: list[float] = []
    for incarnation in range(1, 22):
        which = (1, REDUCER, incarnation)
        subject = step(subject, ReplicaStarted(*which, now), now).job
        transition = step(subject, ReplicaExited(*which, exited(2, ended=now)), now)
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


def test_a_job_that_ends_in_a_reducers_pause_waits_for_nobody() -> None:
    """spec/lifecycle#cancel: the incarnation that was to come never starts."""
    life = Life(job(1, 1, 1, reducers=True)).up()
    life.exits(REDUCER, 2).loses(REDUCER, "it never came up")
    assert life.replica(REDUCER).not_before
    life.cancel()
    (stop,) = instructions(life.job)
    assert stop == StopReplicas(1, ((REDUCER, 3),))
    assert life.up().job.state is JobState.CANCELLED


def test_a_reducer_may_be_lost_any_number_of_times_if_it_is_seldom() -> None:
    """spec/failures#budgets: a rate limit of its own, not a budget of the attempt."""
    life = Life(job(1, 1, 1, reducers=True, scheduling=Scheduling(disable_retries=True))).up()
    for _ in range(50):
        life.now += 4 * SECOND
        life.loses(REDUCER, by_service=True)
        replica = life.replica(REDUCER)
        started = StartReplicas(1, ((REDUCER, replica.incarnation),))
        assert instructions(life.job) == (started,), "it has lived, and starts at once"
        life.up()
    assert life.replica(REDUCER).incarnation == 51
    assert (life.job.state, life.job.attempt) == (JobState.RUNNING, 1)


def test_how_reducers_end_once_the_workers_have_is_nobodys_business() -> None:
    """spec/lifecycle#success: the job ends with its primary, whatever the exit codes of the others."""
    life = Life(job(1, 1, 2, reducers=True)).up().exits(WORKER).exits(PRIMARY)
    life.exits(REDUCER, 1, stopped=True).exits(ReplicaId(2, 1), 0, stopped=True)
    assert (life.job.state, life.job.error) == (JobState.SUCCEEDED, None)


def test_a_job_runs_without_a_reducer_that_never_comes_up() -> None:
    """spec/failures#lost-replicas: the job goes on; spec/lifecycle#start: RUNNING when all that are left are
    up."""
    life = Life(job(1, 0, 1, reducers=True))
    life.see(JobAdmitted(((PRIMARY, "a"), (REDUCER, "b"))), RuntimePrepared(1))
    for _ in range(21):
        life.loses(REDUCER, "it cannot bind its port")
    assert life.replica(REDUCER).state is ReplicaState.LOST
    life.see(ReplicaStarted(1, PRIMARY, 1, life.now))
    assert life.job.state is JobState.RUNNING
