"""Timeline entries and job records show why a placed job has not started (spec/operations#why-it-waits)."""

from msgspec.structs import replace

from tests.unit.jobs import CREATED, PRIMARY, SECOND, WORKER, Life, exit_record, job
from trainshed.core.capacity import Delay, WaitReason
from trainshed.core.lifecycle.events import (
    CancelCause,
    CancelRequested,
    JobAdmitted,
    NodeLeft,
    NodesGiven,
    RuntimePrepared,
    StartDelayed,
)
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaStarted

PLACES = JobAdmitted(((PRIMARY, "a"),))
BUSY = Delay(WaitReason.CLUSTER, "Slurm has not given its node yet: it is in use", word="Resources")
LATER = Delay(WaitReason.CLUSTER, "Slurm has not given its node yet: others go first")
HOUR = 3600 * SECOND


def starting() -> Life:
    return Life(job(1)).see(PLACES, RuntimePrepared(1))


def delay_messages(life: Life) -> list[str]:
    return [entry.message for entry in life.timeline if entry.kind == "delayed"]


def test_changing_delay_reason_is_reported_once_a_minute() -> None:
    life = starting().see(StartDelayed(1, BUSY), StartDelayed(1, LATER))
    assert len(delay_messages(life)) == 1
    life.now += 60 * SECOND
    life.see(StartDelayed(1, LATER))
    assert delay_messages(life)[1:] == ["Slurm has not given its node yet: others go first."]


def test_expected_start_of_a_delayed_job_is_reported_when_it_is_known_or_changes() -> None:
    life = starting().see(StartDelayed(1, BUSY))
    expected = CREATED + HOUR
    life.see(StartDelayed(1, replace(BUSY, expected=expected, position=3)))
    assert delay_messages(life)[-1].endswith(
        "; number 3 in its queue; start expected at 1970-01-01 01:16 UTC."
    )
    life.now += 61 * SECOND
    life.see(
        StartDelayed(1, replace(BUSY, expected=expected + 120 * SECOND)),
        StartDelayed(1, replace(BUSY, expected=0)),
        StartDelayed(1, replace(BUSY, expected=expected, position=2)),
    )
    assert len(delay_messages(life)) == 2, "small changes of the time and the position are not reported"
    life.see(StartDelayed(1, replace(BUSY, expected=expected + HOUR)))
    assert delay_messages(life)[-1].endswith("start expected at 1970-01-01 02:16 UTC.")


def test_delay_is_not_reported_for_a_job_that_is_not_starting() -> None:
    for life in (
        Life(job(1)).see(StartDelayed(0, BUSY), StartDelayed(1, BUSY)),
        Life(job(1)).see(PLACES, StartDelayed(1, BUSY)),
        starting().see(ReplicaStarted(1, PRIMARY, 1, CREATED), StartDelayed(1, BUSY)),
        starting().see(CancelRequested(CancelCause.USER, CREATED), StartDelayed(1, BUSY)),
        starting().see(StartDelayed(2, BUSY)),
    ):
        assert delay_messages(life) == []


def test_node_of_each_replica_is_the_node_chosen_by_the_cluster() -> None:
    places = JobAdmitted(((PRIMARY, "a"), (WORKER, "a")))
    given_nodes = NodesGiven(1, ((PRIMARY, "c"), (WORKER, "d")))
    life = Life(job(1, 1)).see(places, given_nodes)
    assert [replica.node for replica in life.job.replicas] == ["a", "a"], "nothing is started yet"
    life.see(RuntimePrepared(1), NodesGiven(2, given_nodes.nodes), given_nodes, given_nodes)
    assert [replica.node for replica in life.job.replicas] == ["c", "d"]
    [entry] = [entry for entry in life.timeline if entry.kind == "nodes_given"]
    assert entry.message == "The cluster has placed workerpool0-0 on c, workerpool1-0 on d."
    # A replica that had to move already has another node, so an older report must not change it.
    life.see(
        NodeLeft("d", "maintenance"), ReplicaExited(1, WORKER, 1, exit_record(None, signal=15)), given_nodes
    )
    assert not next(r.node for r in life.job.replicas if r.id == WORKER)
