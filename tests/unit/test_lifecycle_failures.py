"""Failures, restarts and retries in the life of a job (spec/failures#budgets): each row of the table, with
its budgets. Drills (spec/operations#drills): faults that a user orders, injected into a real job as it
runs."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import PRIMARY, SECOND, WORKER, Life, exited, job
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


def failed(life: Life) -> tuple[int, str]:
    """Code and message of a job that has failed."""
    assert life.job.state is JobState.FAILED
    assert life.job.error is not None
    return life.job.error.code, life.job.error.message


def test_an_out_of_memory_of_a_child_alone_is_only_told() -> None:
    """spec/failures#user-code: a timeline entry; the main process's own exit then decides."""
    life = Life(job(1)).up().exits(PRIMARY, 0, child_oom=2)
    assert life.job.state is JobState.SUCCEEDED
    (entry,) = [e for e in life.told if e.kind == "child_out_of_memory"]
    assert "workerpool0-0 lost 2 child processes" in entry.message


@pytest.mark.parametrize("crash", [{"code": 139}, {"signal": 11}, {"code": 6}])
def test_a_crash_of_the_whole_gang_costs_one_retry(crash: dict[str, int]) -> None:
    """spec/failures#crashes: at most 3 retries. All replicas crash together, as they do when one takes its
    peers with it: the primary's crash, reported second, is met by the retry that the worker's has brought."""
    life = Life(job(1, 1)).up()
    for retries in (1, 2, 3, 3):
        at = life.now
        life.exits(WORKER, ended=at, **crash).exits(PRIMARY, ended=at, **crash)
        assert life.job.retries == (("transient_exit", retries),)
        life.up()
    assert failed(life)[0] == 3


def test_disable_retries_forbids_retries_of_the_job_and_not_restarts_of_a_replica() -> None:
    """spec/failures#retries: disableRetries forbids job-level retries."""
    assert Life(job(1, scheduling=DISABLED)).up().exits(PRIMARY, 139).job.state is JobState.FAILED
    life = Life(job(1, scheduling=DISABLED)).up()
    for _ in range(5):
        life.loses(PRIMARY).up()
    assert life.job.state is JobState.RUNNING
    life.loses(PRIMARY)
    assert "5 of 5 restarts used, the job forbids retries; the job fails" in life.last


def test_a_job_that_a_hard_budget_stops_waits_for_it_and_nothing_is_counted() -> None:
    """spec/failures#budget: by no stop is it nearer to its last attempt, and its running limit rests."""
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
    assert life.cancel().job.ended == life.now, "it has waited since its last program ended"


def test_waits_for_room_are_no_running_time() -> None:
    """spec/lifecycle#time-limits: also where the room is gone while it waits."""
    life = Life(job(1, scheduling=Scheduling(timeout=3600 * SECOND))).up()
    life.now += 3300 * SECOND
    life.see(Preempted("others")).exits(PRIMARY, signal=15, stopped=True)
    life.now += 600 * SECOND
    life.see(CapacityRefused("no node"))
    life.now += 60 * SECOND
    life.up()
    (limit,) = deadlines(life.job)
    assert limit.at - life.now > 250 * SECOND


@pytest.mark.parametrize(("has_begun", "state"), [(False, "PREPARING"), (True, "FAILED")])
def test_a_job_without_retries_that_a_hard_budget_stops_ends_with_it_once_it_has_begun(
    has_begun: bool, state: str
) -> None:
    """spec/failures#budget."""
    life = Life(job(1, scheduling=DISABLED)).see(JobAdmitted(((PRIMARY, "a"),)))
    life = life.up() if has_begun else life
    life.see(Preempted("project vision has used 5 of 5 of this month's budget", Cause.BUDGET))
    if has_begun:
        life.exits(PRIMARY, signal=15, stopped=True)
        assert failed(life) == (
            8,
            "The job was stopped because project vision has used 5 of 5 of this month's budget, and it "
            "does not allow retries (disableRetries).",
        )
    assert life.job.state == state


def test_what_runs_stays_on_a_node_that_is_not_heard_of_and_what_waits_leaves() -> None:
    """Whether the running one is lost is for its agent's lease to say; after that it goes elsewhere, too."""
    unheard = NodeLeft("b", "the cluster does not hear of it", staying=(WORKER,))
    life = Life(job(1, 1)).up().see(unheard)
    assert life.replica(WORKER).state is ReplicaState.RUNNING and not life.replica(WORKER).leaving
    assert not instructions(life.job)
    life.see(replace(unheard, staying=())).loses(WORKER).places(WORKER, "c").up()
    assert (life.replica(WORKER).incarnation, life.replica(WORKER).node) == (2, "c")


@pytest.mark.parametrize(
    ("loss", "is_retried"), [(Cause.POD_EVICTED, False), (Cause.CLUSTER_PREEMPTED, True)]
)
def test_a_replica_that_the_cluster_has_stopped_is_lost_in_its_way(
    loss: Cause, is_retried: bool
) -> None:
    """spec/failures#losses-on-a-cluster: also where its program was asked to end, and has told its end."""
    life = Life(job(1, 1)).up()
    record = exited(0, stopped=True, ended=life.now)
    life.see(ReplicaExited(1, PRIMARY, 1, record, loss, "its Pod is in the way"))
    assert life.rules == [str(loss)]
    assert (life.job.retry is not None) is is_retried
    primary = life.replica(PRIMARY)
    assert is_retried or (primary.node, primary.avoid) == (None, "a"), "it was put out there"
    [verdict] = [entry for entry in life.told if entry.kind == "verdict"]
    assert "(its Pod is in the way)" in verdict.message


@pytest.mark.parametrize("whole_job", [False, True])
def test_repeated_ends_at_a_time_limit_are_explained_once(whole_job: bool) -> None:
    """spec/failures#losses-on-a-cluster: a program without checkpoints would start over 20 times."""
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
        return [entry.message for entry in life.told if entry.kind == "warning"]

    expire()
    assert not warnings(), "it may have saved its state"
    expire()
    [warning] = warnings()
    assert "has stopped workerpool0-0 2 times, most recently after 602 s" in warning
    assert "Save checkpoints to gs://" in warning
    while life.job.state is not JobState.FAILED:
        expire()
    assert len(warnings()) == 1
    code, message = failed(life)
    assert code == 3
    assert "(TIMEOUT).\nA program that does not resume from a checkpoint" in message


def test_a_replica_that_leaves_before_it_began_loses_nothing() -> None:
    """spec/failures#maintenance: nodes come and go while a cluster has an attempt wait for them, and none of
    that is a loss."""
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


def test_every_verdict_names_its_rule_its_effect_and_its_evidence() -> None:
    """Issue of the failure table: each verdict is recorded with rule and evidence on the job's timeline."""
    life = Life(job(1, 1)).up().exits(WORKER, 139)
    (entry,) = [e for e in life.told if e.kind == "verdict"]
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


def test_a_job_that_is_given_up_does_not_wait_for_a_replica_without_a_place() -> None:
    """spec/failures#service-failures, the service itself failed: code 13. Nobody would ever report of a
    replica that is nowhere."""
    life = Life(job(1, 1)).up().see(NodeLeft("b", "maintenance")).exits(WORKER, 143, stopped=True)
    assert life.replica(WORKER).node is None
    life.job = give_up(life.job, NodeLeft("a", "gone"), "planted", life.now).job
    assert life.job.state is JobState.RUNNING, "the primary lives"
    assert life.replica(WORKER).state is ReplicaState.LOST
    life.up()
    assert failed(life)[0] == 13


def test_a_cancel_that_was_accepted_stands_when_the_job_is_given_up() -> None:
    """spec/lifecycle#end, cancel: after an accepted cancel the final state is CANCELLED."""
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
def test_an_attempt_meets_what_the_rule_of_that_name_is_about(kind: DrillKind, rule: str) -> None:
    """spec/operations#drills: stockout, preemption, internal error. The verdict names the drill."""
    life = Life(job(1, 1)).up().see(order(kind))
    assert instructions(life.job) == (StopReplicas(1),)
    (verdict,) = [e for e in life.told if e.kind == "verdict"]
    assert (verdict.details["rule"], verdict.details["drill"]) == (rule, 1)
    assert life.job.retry is not None and not life.job.retry.keeps_room
    life.up()
    assert (life.job.attempt, life.job.state) == (2, JobState.RUNNING)
