"""Failures, restarts, retries and drills in the life of a job.

Each row of the failure table is tested with its budgets (spec/failures#budgets). Drills are faults that a
user orders for a running job (spec/operations#drills).
"""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import PRIMARY, SECOND, WORKER, Life, exit_record, job
from trainshed.core.failure.evidence import Cause
from trainshed.core.failure.table import MAX_ATTEMPTS
from trainshed.core.job import Scheduling
from trainshed.core.lifecycle.events import (
    CapacityRefused,
    DrillOrdered,
    JobAdmitted,
    NodeLeft,
    Preempted,
    RuntimePrepared,
    StopReplica,
    StopReplicas,
)
from trainshed.core.lifecycle.machine import deadlines, give_up
from trainshed.core.lifecycle.records import Drill, DrillKind
from trainshed.core.lifecycle.replica_events import NEVER_STARTED, ReplicaExited, ReplicaLost
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.lifecycle.transition import instructions
from trainshed.core.names import ReplicaId

DISABLED = Scheduling(disable_retries=True)


def error_of(life: Life) -> tuple[int, str]:
    """Return the code and the message of a failed job."""
    assert life.job.state is JobState.FAILED
    assert life.job.error is not None
    return life.job.error.code, life.job.error.message


def test_child_process_out_of_memory_is_reported_but_does_not_fail_the_job() -> None:
    """spec/failures#user-code: a timeline entry is added, and the exit of the main process decides."""
    life = Life(job(1)).up().exits(PRIMARY, 0, child_oom=2)
    assert life.job.state is JobState.SUCCEEDED
    (entry,) = [e for e in life.timeline if e.kind == "child_out_of_memory"]
    assert "workerpool0-0 lost 2 child processes" in entry.message


@pytest.mark.parametrize("crash", [{"code": 139}, {"signal": 11}, {"code": 6}])
def test_simultaneous_crash_of_all_replicas_uses_a_single_retry(crash: dict[str, int]) -> None:
    """spec/failures#crashes: at most 3 retries. All replicas crash together. The retry caused by the worker
    also covers the primary, whose crash is reported second."""
    life = Life(job(1, 1)).up()
    for retries in (1, 2, 3, 3):
        at = life.now
        life.exits(WORKER, ended=at, **crash).exits(PRIMARY, ended=at, **crash)
        assert life.job.retries == (("transient_exit", retries),)
        life.up()
    assert error_of(life)[0] == 3


def test_job_with_disabled_retries_still_restarts_single_replicas() -> None:
    """spec/failures#retries: disableRetries only forbids retries of the whole job."""
    assert Life(job(1, scheduling=DISABLED)).up().exits(PRIMARY, 139).job.state is JobState.FAILED
    life = Life(job(1, scheduling=DISABLED)).up()
    for _ in range(5):
        life.loses(PRIMARY).up()
    assert life.job.state is JobState.RUNNING
    life.loses(PRIMARY)
    assert "5 of 5 restarts used, the job forbids retries; the job fails" in life.last


def test_job_stopped_by_a_usage_budget_loses_no_attempt_and_no_running_time() -> None:
    """spec/failures#budget: stops by a usage budget use no attempts, and the running time limit pauses."""
    spent = "ana@corp.example has used 40 of 40 CPU-hours of this month's budget"
    life = Life(job(1, scheduling=Scheduling(timeout=100 * SECOND))).up()
    for _ in range(MAX_ATTEMPTS + 2):
        life.see(Preempted(spent, Cause.BUDGET))
        assert life.last == (
            f"Rule budget_used_up for the attempt ({spent}): the job waits for its budget, and the count "
            "does not change."
        )
        life.exits(PRIMARY, signal=15, stopped=True)
        assert (life.job.state, deadlines(life.job)) == (JobState.PREPARING, ())
        life.now += 1000 * SECOND
        life.up()
    (limit,) = deadlines(life.job)
    assert 0 < limit.at - life.now < 100 * SECOND
    life.exits(PRIMARY, 139).up()
    assert life.job.retries == (("budget_used_up", MAX_ATTEMPTS + 2), ("transient_exit", 1))
    life.see(Preempted(spent, Cause.BUDGET)).exits(PRIMARY, signal=15, stopped=True)
    life.now += 1000 * SECOND
    assert life.cancel().job.ended == life.now, "the job has waited since the end of its last program"


def test_waiting_for_capacity_does_not_count_as_running_time() -> None:
    """spec/lifecycle#time-limits: this also applies if the job loses its capacity while it waits."""
    life = Life(job(1, scheduling=Scheduling(timeout=3600 * SECOND))).up()
    life.now += 3300 * SECOND
    life.see(Preempted("others")).exits(PRIMARY, signal=15, stopped=True)
    life.now += 600 * SECOND
    life.see(CapacityRefused("no node"))
    life.now += 60 * SECOND
    life.up()
    (limit,) = deadlines(life.job)
    assert limit.at - life.now > 250 * SECOND


@pytest.mark.parametrize(("has_started", "state"), [(False, "PREPARING"), (True, "FAILED")])
def test_used_up_budget_fails_a_running_job_whose_retries_are_disabled(has_started: bool, state: str) -> None:
    """spec/failures#budget: without retries, a job fails when the budget stops it after its start."""
    life = Life(job(1, scheduling=DISABLED)).see(JobAdmitted(((PRIMARY, "a"),)))
    life = life.up() if has_started else life
    life.see(Preempted("project vision has used 5 of 5 of this month's budget", Cause.BUDGET))
    if has_started:
        life.exits(PRIMARY, signal=15, stopped=True)
        assert error_of(life) == (
            8,
            "The job was stopped because project vision has used 5 of 5 of this month's budget, and it "
            "does not allow retries (disableRetries).",
        )
    assert life.job.state == state


def test_running_replica_stays_on_a_silent_node_until_the_replica_is_lost() -> None:
    """The agent's lease decides whether the running replica is lost. A lost replica moves to another node."""
    unheard = NodeLeft("b", "the cluster does not hear of it", staying=(WORKER,))
    life = Life(job(1, 1)).up().see(unheard)
    assert life.replica(WORKER).state is ReplicaState.RUNNING and not life.replica(WORKER).leaving
    assert not instructions(life.job)
    life.see(replace(unheard, staying=())).loses(WORKER).places(WORKER, "c").up()
    assert (life.replica(WORKER).incarnation, life.replica(WORKER).node) == (2, "c")


@pytest.mark.parametrize(
    ("loss", "is_retried"), [(Cause.POD_EVICTED, False), (Cause.CLUSTER_PREEMPTED, True)]
)
def test_replica_stopped_by_the_cluster_counts_as_lost_despite_an_exit_record(
    loss: Cause, is_retried: bool
) -> None:
    """spec/failures#losses-on-a-cluster: this also applies if the program was stopped and reported its
    exit."""
    life = Life(job(1, 1)).up()
    record = exit_record(0, stopped=True, ended=life.now)
    life.see(ReplicaExited(1, PRIMARY, 1, record, loss, "its Pod is in the way"))
    assert life.rules == [str(loss)]
    assert (life.job.retry is not None) is is_retried
    primary = life.replica(PRIMARY)
    assert is_retried or (primary.node, primary.avoid) == (None, "a"), (
        "the replica avoids the node that evicted it"
    )
    [verdict] = [entry for entry in life.timeline if entry.kind == "verdict"]
    assert "(its Pod is in the way)" in verdict.message


@pytest.mark.parametrize("whole_job", [False, True])
def test_timeline_explains_repeated_losses_by_the_cluster_time_limit_once(whole_job: bool) -> None:
    """spec/failures#losses-on-a-cluster: a program without checkpoints would start from scratch 20 times."""
    life = Life(job(1, 1, scheduling=Scheduling(restart_job_on_worker_restart=whole_job))).up()

    def expire() -> None:
        life.now += 600 * SECOND
        for replica in (PRIMARY, WORKER):
            known = life.replica(replica)
            if not known.state.is_over:
                cause = "Slurm's time limit for its allocation is over (TIMEOUT)"
                attempt, loss = life.job.attempt, Cause.ALLOCATION_EXPIRED
                life.see(ReplicaLost(attempt, replica, known.incarnation, cause, loss=loss))
        if life.job.state is not JobState.FAILED:
            life.up()

    def warnings() -> list[str]:
        return [entry.message for entry in life.timeline if entry.kind == "warning"]

    expire()
    assert not warnings(), "the replica may have saved its state"
    expire()
    [warning] = warnings()
    assert "has stopped workerpool0-0 2 times, most recently after 602 s" in warning
    assert "Save checkpoints to gs://" in warning
    while life.job.state is not JobState.FAILED:
        expire()
    assert len(warnings()) == 1
    code, message = error_of(life)
    assert code == 3
    assert "(TIMEOUT).\nA program that does not resume from a checkpoint" in message


def test_replica_that_moves_before_the_program_start_uses_no_restart() -> None:
    """spec/failures#maintenance: node changes during the wait for a cluster allocation are not losses."""
    life = Life(job(1, 1)).see(JobAdmitted(((PRIMARY, "a"), (WORKER, "b"))), RuntimePrepared(1))
    for incarnation, node in enumerate("bcd", 1):
        life.see(NodeLeft(node, "it is drained"))
        assert StopReplica(1, WORKER, incarnation) in instructions(life.job)
        life.loses(WORKER, NEVER_STARTED)
        worker = life.replica(WORKER)
        assert (worker.node, worker.avoid, worker.incarnation) == (None, node, incarnation + 1)
        life.places(WORKER, chr(ord(node) + 1))
    life.up()
    assert (life.job.state, life.job.attempt, life.rules) == (JobState.RUNNING, 1, [])
    assert life.replica(WORKER).restarts == ()


def test_timeline_entry_of_a_failure_verdict_contains_rule_effect_and_evidence() -> None:
    """Each verdict of the failure table is a timeline entry with rule and evidence."""
    life = Life(job(1, 1)).up().exits(WORKER, 139)
    (entry,) = [e for e in life.timeline if e.kind == "verdict"]
    assert entry.details == {
        "rule": "transient_exit",
        "effect": "job_retries",
        "cause": "exited",
        "attempt": 1,
        "replica": "workerpool1-0",
        "exit_code": 139,
        "signal": None,
        "status": 139,
        "count": 1,
        "budget": 3,
    }
    assert entry.message == "Rule transient_exit for workerpool1-0: the job is retried (1 of 3)."


def test_job_failed_by_an_internal_error_does_not_wait_for_a_replica_without_a_node() -> None:
    """spec/failures#service-failures: a failure of the service has code 13. No event would ever report the
    end of a replica without a node."""
    life = Life(job(1, 1)).up().see(NodeLeft("b", "maintenance")).exits(WORKER, 143, stopped=True)
    assert life.replica(WORKER).node is None
    life.job = give_up(life.job, NodeLeft("a", "gone"), "planted", life.now).job
    assert life.job.state is JobState.RUNNING, "the primary still runs"
    assert life.replica(WORKER).state is ReplicaState.LOST
    life.up()
    assert error_of(life)[0] == 13


def test_cancelled_job_ends_with_state_cancelled_despite_an_internal_error() -> None:
    """spec/lifecycle#cancel: after an accepted cancel, the final state is CANCELLED."""
    life = Life(job(1, 1)).up().cancel()
    life.job = give_up(life.job, NodeLeft("a", "gone"), "planted", life.now).job
    life.up()
    assert life.job.state is JobState.CANCELLED
    assert life.job.error is not None and life.job.error.code == 1


def order(
    kind: DrillKind, replica: ReplicaId = WORKER, *, at_line: str | None = None, at: int = 0
) -> DrillOrdered:
    return DrillOrdered(Drill(0, kind, replica, at, at_line))


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (DrillKind.PREEMPT, "preempted"),
        (DrillKind.STOCKOUT, "stock_out"),
        (DrillKind.INTERNAL, "internal_error"),
    ],
)
def test_fault_drill_applies_the_failure_rule_of_the_requested_kind_of_fault(
    kind: DrillKind, rule: str
) -> None:
    """spec/operations#drills: the verdict of a stockout, preemption or internal error drill names the
    drill."""
    life = Life(job(1, 1)).up().see(order(kind))
    assert instructions(life.job) == (StopReplicas(1),)
    (verdict,) = [e for e in life.timeline if e.kind == "verdict"]
    assert (verdict.details["rule"], verdict.details["drill"]) == (rule, 1)
    assert life.job.retry is not None and not life.job.retry.keeps_room
    life.up()
    assert (life.job.attempt, life.job.state) == (2, JobState.RUNNING)
