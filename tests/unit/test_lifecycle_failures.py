"""Failures, restarts and retries in the life of a job (spec/failures#budgets): each row of the table, with
its budgets."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import CREATED, PRIMARY, SECOND, WORKER, Life, exited, job
from trainshed.core.failure.evidence import Cause
from trainshed.core.failure.messages import linked
from trainshed.core.job.spec import Scheduling
from trainshed.core.lifecycle.events import (
    CapacityRefused,
    JobAdmitted,
    NodeLeft,
    Preempted,
    PreparationFailed,
    ReleaseSlots,
    RuntimePrepared,
    StartReplicas,
    StopReplica,
    StopReplicas,
)
from trainshed.core.lifecycle.machine import give_up
from trainshed.core.lifecycle.replica_events import (
    NEVER_STARTED,
    Loss,
    ReplicaExited,
    ReplicaStarted,
)
from trainshed.core.lifecycle.states import AttemptState, JobState, ReplicaState
from trainshed.core.lifecycle.transition import instructions

DISABLED = Scheduling(disable_retries=True)


def failed(life: Life) -> tuple[int, str]:
    """Code and message of a job that has failed."""
    assert life.job.state is JobState.FAILED
    assert life.job.error is not None
    return life.job.error.code, life.job.error.message


def test_a_killed_replica_restarts_in_place_and_the_others_go_on() -> None:
    """spec/failures#lost-replicas: the replica is restarted, on the same node, with the same index."""
    life = Life(job(1, 1)).up()
    others = life.replica(PRIMARY)
    life.exits(WORKER, signal=9)
    worker = life.replica(WORKER)
    assert (worker.state, worker.incarnation, worker.node) == (ReplicaState.WAITING, 2, "b")
    assert life.replica(PRIMARY) == others
    assert instructions(life.job) == (StartReplicas(1, ((WORKER, 2),)),)
    assert life.job.state is JobState.RUNNING
    life.up()
    assert life.replica(WORKER).state is ReplicaState.RUNNING
    assert (life.job.attempt, life.rules) == (1, ["replica_lost"])
    assert "the replica is restarted (1 of 5)" in life.last


def test_five_restarts_per_replica_and_attempt_then_three_retries_then_the_end() -> None:
    """spec/failures#retries, lost replicas: at most 5 restarts per replica and attempt; then the whole job is
    retried, at most 3 times; then FAILED. The retries count over the whole life, the restarts begin anew with
    each attempt."""
    life = Life(job(1, 1)).up()
    for attempt in (1, 2, 3, 4):
        assert life.job.attempt == attempt
        for restart in range(5):
            life.loses(WORKER).up()
            assert life.replica(WORKER).incarnation == restart + 2
        life.loses(WORKER).up()
    assert failed(life) == (3, "The replica workerpool1-0 was lost: its shim is gone.")
    assert life.rules == ["replica_lost"] * 24
    assert "5 of 5 restarts used, 3 of 3 retries used; the job fails" in life.last


def test_a_retry_waits_until_nothing_of_the_attempt_lives_and_begins_in_the_same_places() -> None:
    """spec/failures#lost-replicas and spec/invariants#one-incarnation: never two live incarnations of one
    replica."""
    life = Life(job(1, 1)).up().exits(WORKER, 139)
    assert life.job.state is JobState.PREPARING, "spec/lifecycle#states: the state goes back"
    assert (life.job.attempt, instructions(life.job)) == (1, (StopReplicas(1),))
    life.exits(PRIMARY, 143, stopped=True)
    assert (life.job.attempt, life.job.phase) == (2, AttemptState.PREPARING)
    assert [r.node for r in life.job.replicas] == ["a", "b"]
    assert life.up().job.state is JobState.RUNNING


def test_an_out_of_memory_of_a_child_alone_is_only_told() -> None:
    """spec/failures#user-code: a timeline entry; the main process's own exit then decides."""
    life = Life(job(1)).up().exits(PRIMARY, 0, child_oom=2)
    assert life.job.state is JobState.SUCCEEDED
    (entry,) = [e for e in life.told if e.kind == "child_out_of_memory"]
    assert "workerpool0-0 2 processes beside its main one" in entry.message


def test_a_failure_of_the_service_gives_three_attempts_in_all() -> None:
    """spec/failures#service-failures: then FAILED, code 13, with the typed cause beside it in the job's
    timeline."""
    life = Life(job(1))
    for attempt in (1, 2, 3):
        life.see(JobAdmitted(((PRIMARY, "a"),)))
        assert life.job.attempt == attempt
        life.see(PreparationFailed(attempt, "uv: disk full", cause=Cause.SERVICE))
    assert failed(life) == (
        13,
        "Internal error occurred for the current attempt: uv: disk full",
    )
    assert life.job.error is not None
    assert (life.job.error.cause, life.job.error.reason) == ("service", "uv: disk full")
    assert "uv: disk full" in life.last


def test_a_failure_of_the_service_is_tried_again_after_a_pause() -> None:
    """spec/failures#service-failures: what failed, a registry say, has time to come back; the timeline says
    when the next try is."""
    life = Life(job(1))
    pauses: list[int] = []
    for attempt in (1, 2):
        life.see(JobAdmitted(((PRIMARY, "a"),)))
        life.see(PreparationFailed(attempt, "the registry does not answer", cause=Cause.SERVICE))
        pauses.append(life.job.not_before - life.now)
    assert pauses == [2 * SECOND, 10 * SECOND]
    verdict, waiting = life.told[-2:]
    assert verdict.message.endswith("the job is retried after 10 seconds (2 of 2).")
    assert waiting.message == "The job asks for room again in 10 seconds."
    assert waiting.details == {"not_before": life.job.not_before}


def test_a_replica_that_the_service_cannot_run_is_an_internal_error() -> None:
    """spec/failures#service-failures: engine error."""
    life = Life(job(1, 1)).up().loses(WORKER, "no room for a mount", by_service=True)
    assert life.rules == ["internal_error"]
    assert life.up().job.attempt == 2
    messages = [e.message for e in life.told if e.kind == "service_failed"]
    assert messages == ["The service could not run workerpool1-0: no room for a mount."]


def test_a_start_that_turns_out_to_be_impossible_gives_the_attempt_up() -> None:
    """Without this it would be PREPARING for ever: no limit of time runs before the first RUNNING."""
    failure = PreparationFailed(1, "there is no node x", cause=Cause.SERVICE)
    life = Life(job(1, 1)).see(JobAdmitted(((PRIMARY, "a"), (WORKER, "b"))), RuntimePrepared(1))
    life.see(ReplicaStarted(1, PRIMARY, 1, CREATED), failure)
    assert instructions(life.job) == (StopReplicas(1, ((WORKER, 1),)),)
    assert life.up().job.attempt == 2


def test_what_the_engine_will_never_start_is_not_tried_again() -> None:
    """spec/failures#service-failures: it fails at once, and its message says why."""
    life = Life(job(1, 1)).see(JobAdmitted(((PRIMARY, "a"), (WORKER, "b"))), RuntimePrepared(1))
    life.see(PreparationFailed(1, "Slurm refuses 64 CPUs on node1", Cause.REJECTED))
    life.up()
    assert failed(life) == (9, "The job cannot be started here: Slurm refuses 64 CPUs on node1")
    assert life.job.attempt == 1 and life.rules == ["launch_rejected"]


def test_a_stock_out_that_is_told_twice_counts_once() -> None:
    """spec/failures#no-capacity: with back-off; nothing is asked for before the pause is over."""
    life = Life(job(1)).see(CapacityRefused("none"), CapacityRefused("none"))
    assert life.job.retries == (("stock_out", 1),)


def test_a_replica_that_finds_no_other_node_is_a_stock_out_of_the_whole_job() -> None:
    """spec/failures#retries: the gang is given up, its room too, and asked for again after the pause."""
    life = Life(job(1, 1)).up().see(NodeLeft("b", "it is drained"))
    life.exits(WORKER, 143, stopped=True)
    life.see(CapacityRefused("no other node"))
    assert life.job.state is JobState.PREPARING
    assert life.job.retry is not None
    life.exits(PRIMARY, 143, stopped=True)
    assert (life.job.phase, life.job.is_placed) == (AttemptState.WAITING, False)
    assert instructions(life.job) == (ReleaseSlots(1),)
    assert life.up().job.attempt == 2
    assert life.job.state is JobState.RUNNING


def test_a_preempted_job_does_not_name_one_of_another_project() -> None:
    """On the timeline, in the verdict and in the job's error."""
    names = {"its own": f"{job(1).name}0", "theirs": "projects/speech/jobs/secret"}
    told = {
        whose: str(Life(job(1)).up().see(Preempted(name)).told) for whose, name in names.items()
    }
    assert names["its own"] in told["its own"]
    assert "speech" not in told["theirs"] and "a job of another project" in told["theirs"]


def test_a_preempted_job_gives_its_room_back() -> None:
    """spec/failures#preemption: the room is another's."""
    life = Life(job(1)).up().see(Preempted("x"))
    assert instructions(life.job) == (StopReplicas(1),)
    life.exits(PRIMARY, 143, stopped=True)
    assert (life.job.state, life.job.phase) == (JobState.PREPARING, AttemptState.WAITING)
    assert life.job.is_placed is False


def test_disable_retries_forbids_retries_of_the_job_and_not_restarts_of_a_replica() -> None:
    """spec/failures#retries: disableRetries forbids job-level retries."""
    assert Life(job(1, scheduling=DISABLED)).up().exits(PRIMARY, 139).job.state is JobState.FAILED
    life = Life(job(1, scheduling=DISABLED)).up()
    for _ in range(5):
        life.loses(PRIMARY).up()
    assert life.job.state is JobState.RUNNING
    life.loses(PRIMARY)
    assert "5 of 5 restarts used, the job forbids retries; the job fails" in life.last


def test_what_runs_stays_on_a_node_that_is_not_heard_of_and_what_waits_leaves() -> None:
    """Whether the running one is lost is for its agent's lease to say; after that it goes elsewhere, too."""
    unheard = NodeLeft("b", "the cluster does not hear of it", staying=(WORKER,))
    life = Life(job(1, 1)).up().see(unheard)
    assert life.replica(WORKER).state is ReplicaState.RUNNING and not life.replica(WORKER).leaving
    assert not instructions(life.job)
    life.see(replace(unheard, staying=())).loses(WORKER).places(WORKER, "c").up()
    assert (life.replica(WORKER).incarnation, life.replica(WORKER).node) == (2, "c")


def test_a_replica_leaves_its_node_and_goes_on_on_another() -> None:
    """spec/failures#maintenance: a node can be drained at any time; its replicas move and are restarted
    there. Exit 0 after SIGTERM is not success: a program that saves its state and leaves is not finished."""
    life = Life(job(1, 1)).up().see(NodeLeft("a", "it is drained"))
    assert instructions(life.job) == (StopReplica(1, PRIMARY, 1),)
    assert life.replica(WORKER).state is ReplicaState.RUNNING
    life.exits(PRIMARY, 0, stopped=True)
    primary = life.replica(PRIMARY)
    assert (primary.node, primary.avoid, primary.incarnation) == ("", "a", 2)
    assert instructions(life.job) == (), "nothing is started before it has a place"
    life.places(PRIMARY, "c")
    assert instructions(life.job) == (StartReplicas(1, ((PRIMARY, 2),)),)
    life.up()
    assert (life.replica(PRIMARY).node, life.job.state) == ("c", JobState.RUNNING)
    assert (life.job.attempt, life.rules) == (1, ["replica_lost"])


@pytest.mark.parametrize(
    ("loss", "is_retried"), [(Loss.POD_EVICTED, False), (Loss.CLUSTER_PREEMPTED, True)]
)
def test_a_replica_that_the_cluster_has_stopped_is_lost_in_its_way(
    loss: Loss, is_retried: bool
) -> None:
    """spec/failures#losses-on-a-cluster: also where its program was asked to end, and has told its end."""
    life = Life(job(1, 1)).up()
    record = exited(0, stopped=True, ended=life.now)
    life.see(ReplicaExited(1, PRIMARY, 1, record, loss, "its Pod is in the way"))
    assert life.rules == [str(loss)]
    assert (life.job.retry is not None) is is_retried
    primary = life.replica(PRIMARY)
    assert is_retried or (primary.node, primary.avoid) == ("", "a"), "it was put out there"
    [verdict] = [entry for entry in life.told if entry.kind == "verdict"]
    assert "(its Pod is in the way)" in verdict.message


def test_what_the_service_has_asked_to_leave_has_left_whatever_the_cluster_does_then() -> None:
    """spec/failures#maintenance: a node is drained, and its Pods are evicted after that."""
    life = Life(job(1, 1)).up().see(NodeLeft("a", "it is cordoned"))
    record = exited(0, stopped=True, ended=life.now)
    life.see(ReplicaExited(1, PRIMARY, 1, record, Loss.POD_EVICTED, "it was evicted"))
    assert life.rules == ["replica_lost"]


def test_a_replica_that_dies_while_it_leaves_goes_on_elsewhere() -> None:
    """spec/failures#lost-replicas: on another one if its node is gone."""
    life = Life(job(1)).up().see(NodeLeft("a", "it does not answer")).loses(PRIMARY)
    assert life.replica(PRIMARY).avoid == "a"
    assert "it does not answer" in life.last


def test_a_node_that_is_left_before_the_launch_costs_no_restart() -> None:
    """spec/lifecycle: nothing ran, so only the place is another one."""
    life = Life(job(1)).see(JobAdmitted(((PRIMARY, "a"),)), NodeLeft("a", "it is drained"))
    primary = life.replica(PRIMARY)
    assert (primary.node, primary.avoid, primary.incarnation) == ("", "a", 1)
    life.places(PRIMARY, "b").up()
    assert life.job.state is JobState.RUNNING


def test_a_replica_that_leaves_before_it_began_loses_nothing() -> None:
    """spec/failures#maintenance: nodes come and go while a cluster has an attempt wait for them, and none of
    that is a loss."""
    life = Life(job(1, 1)).see(JobAdmitted(((PRIMARY, "a"), (WORKER, "b"))), RuntimePrepared(1))
    for incarnation, node in enumerate("bcd", 1):
        life.see(NodeLeft(node, "it is drained"))
        assert StopReplica(1, WORKER, incarnation) in instructions(life.job)
        life.loses(WORKER, NEVER_STARTED)
        worker = life.replica(WORKER)
        assert (worker.node, worker.avoid, worker.incarnation) == ("", node, incarnation + 1)
        life.places(WORKER, chr(ord(node) + 1))
    life.up()
    assert (life.job.state, life.job.attempt, life.rules) == (JobState.RUNNING, 1, [])
    assert life.replica(WORKER).restarts == ()


def test_a_replica_that_was_to_leave_before_anybody_saw_it_start_is_stopped_by_name() -> None:
    """spec/lifecycle#cancel: it leaves no process behind, and waits for the word of each that may be one."""
    life = Life(job(1)).see(JobAdmitted(((PRIMARY, "a"),)), RuntimePrepared(1))
    life.see(NodeLeft("a", "it is drained")).cancel()
    assert instructions(life.job) == (StopReplicas(1, ((PRIMARY, 1),)),)
    assert life.up().job.state is JobState.CANCELLED


def test_an_ended_replica_does_not_come_back_to_a_node_that_was_left() -> None:
    """spec/failures#maintenance: on another one if its node is gone or draining, whichever replica's end
    retried the job."""
    life = Life(job(1, 1)).up().exits(WORKER).see(NodeLeft("b", "it is drained"))
    life.exits(PRIMARY, 139)
    assert [(r.node, r.avoid) for r in life.job.replicas] == [("a", ""), ("", "b")]


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
    assert life.replica(WORKER).node == ""
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
    assert life.job.error is not None
    assert life.job.error.code == 1


def test_an_error_leads_to_the_service_s_own_page_of_the_job() -> None:
    """spec/failures#messages: where it is at the moment, whatever the message said when it was stored."""
    one = job()
    _, message = failed(Life(one).up().exits(code=1, tail="see https://example.org"))
    public = "please check the logs: https://console.cloud.google.com/logs/viewer?"
    assert public in message
    for pages in ("http://127.0.0.1:9000", "https://training.example.org/x"):
        message = linked(message, one.name, one.uid, pages)
        assert message.endswith(f"please check the logs: {pages}/jobs/{one.uid}")
        assert "see https://example.org" in message
    assert public in linked(message, one.name, one.uid, "")
    own = "Ask the operators. Please check the logs: they know."
    assert linked(own, one.name, one.uid, "http://127.0.0.1:9000") == own
