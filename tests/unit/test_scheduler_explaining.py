"""Exact messages about why a job waits and what would allow it to start."""

from tests.unit.clusters import GIB, NOW, REGION, SECOND, STRICT, T4, SimulatedCluster, gang, node
from trainshed.core.capacity import NodeCondition, OthersUse, QuotaKey, Waiting, WaitReason
from trainshed.core.names import JobUid, ReplicaId
from trainshed.scheduler.explaining import explain_wait, node_statuses, preflight, quota_statuses
from trainshed.scheduler.fair_share import position
from trainshed.scheduler.model import GangState, Policy

CPUS = "cpus_n1_e2"
MAX_WAIT = STRICT.patience


def explanation(cluster: SimulatedCluster, uid: int, now: int = NOW) -> Waiting:
    cluster.plan(now)
    reasons = explain_wait(cluster.snapshot, JobUid(uid), now)
    assert reasons is not None
    return reasons


def test_wait_reason_names_the_job_that_uses_the_only_node() -> None:
    """spec/operations#why-it-waits: a waiting job always shows its reason."""
    cluster = SimulatedCluster([node("a", 8)])
    cluster.run(gang(17, 4), "a")
    cluster.wait(gang(18, 1, replicas=8))
    assert explanation(cluster, 18) == Waiting(
        WaitReason.CAPACITY, "needs 8 CPUs, 4 of 8 are used by job 17", None, (gang(17).name,)
    )


def test_wait_reason_shows_the_free_resources_of_full_nodes() -> None:
    """spec/operations#why-it-waits: the message compares the request with the free resources of the nodes."""
    cluster = SimulatedCluster([node("a", 8, gpus=4), node("b", 8, gpus=2)])
    cluster.run(gang(1, 2, gpus=3), "a", until=NOW + 5)
    cluster.wait(gang(2, 2, gpus=4), gang(3, 8), gang(4, 1, replicas=3, gpus=2), gang(5, 1, memory=64))
    assert explanation(cluster, 2).message == f"needs 4 {T4} on one node, and at most 2 are free on one now"
    assert explanation(cluster, 2).blockers == (gang(1).name,)
    cluster.run(gang(6, 2), "b")
    assert explanation(cluster, 3).message == "needs 8 CPUs on one node, and at most 6 are free on one now"
    assert explanation(cluster, 4).message == (
        f"needs capacity for 3 replicas of 1 CPU and 2 {T4}, and there is capacity for 1 now"
    )
    cluster.run(gang(7, 1, memory=1), "a")
    cluster.run(gang(8, 1, memory=2), "b")
    assert explanation(cluster, 5).message == (
        "needs 64 GiB of memory on one node, and at most 63 GiB are free on one now"
    )


def test_wait_reason_shows_resources_used_outside_the_service() -> None:
    """A job waits for resources used by other programs. Only a job larger than every node is rejected."""
    theirs = OthersUse(6, 4 * GIB)
    cluster = SimulatedCluster([node("a", 8, others=theirs), node("b", 8), node("c", 4)])
    cluster.run(gang(1, 1), "b")
    cluster.wait(gang(2, 8))
    assert explanation(cluster, 2) == Waiting(
        WaitReason.CAPACITY,
        "needs 8 CPUs on one node, and at most 7 are free on one now; programs outside the service use a",
        None,
        (gang(1).name,),
    )
    cluster.set_nodes([node("a", 8), node("b", 8), node("c", 4, others=theirs)])
    assert cluster.admitted_jobs() == [2]
    cluster.wait(gang(3, 9))
    assert explanation(cluster, 3).reason is WaitReason.STOCK_OUT
    single = SimulatedCluster([node("a", 8, gpus=2, others=OthersUse(6, 0, ((T4, 2),)))])
    single.wait(gang(2, 4), gang(3, 1, gpus=1))
    assert explanation(single, 2).message == "needs 4 CPUs, 6 of 8 are used outside the service"
    assert explanation(single, 3).message == f"needs 1 {T4}, 2 of 2 are used outside the service"
    single.run(gang(1, 1), "a")
    assert explanation(single, 2).message == "needs 4 CPUs, 1 of 8 are used by job 1 and 6 by others"


def test_wait_reason_shows_the_used_up_quota() -> None:
    """spec/queue#order: the message shows the quota, its usage, and the command that raises it."""
    cluster = SimulatedCluster([node("a", 64)], quotas={QuotaKey("p", REGION, CPUS): 8})
    cluster.run(gang(1, 4, quota=((CPUS, 4),)), "a")
    cluster.wait(gang(2, 2, replicas=4, quota=((CPUS, 8),)), gang(3, 9, quota=((CPUS, 9),)))
    assert explanation(cluster, 2) == Waiting(
        WaitReason.QUOTA,
        f"needs 8 {CPUS} in {REGION}, 4 of 8 are used by job 1",
        f"an owner can raise the limit: trainshed quotas set {CPUS} 12 --project p --region {REGION}",
        (gang(1).name,),
    )
    assert explanation(cluster, 3) == Waiting(
        WaitReason.QUOTA,
        f"needs 9 {CPUS} in {REGION}, and the project's quota is 8",
        f"an owner can raise the limit: trainshed quotas set {CPUS} 13 --project p --region {REGION}",
        (gang(1).name,),
    )


def test_wait_reason_shows_the_replica_limit() -> None:
    """spec/queue#capacity: relaxed mode limits the number of replicas that run at the same time."""
    cluster = SimulatedCluster([node("a")], Policy(max_replicas=4))
    cluster.run(gang(1, replicas=2), "a")
    cluster.wait(gang(2, replicas=4))
    assert explanation(cluster, 2) == Waiting(
        WaitReason.REPLICA_LIMIT,
        "needs 4 replicas, and 2 of 4 replicas that may run at once are in use",
        None,
        (gang(1).name,),
    )


def test_wait_reason_distinguishes_too_small_drained_and_missing_nodes() -> None:
    """spec/queue#capacity: the message distinguishes too small, drained and missing nodes."""
    cluster = SimulatedCluster([node("a", 4), node("b", 16, condition=NodeCondition.DRAINED)])
    cluster.wait(gang(1, 32), gang(2, 16))
    lost = explanation(cluster, 1)
    assert lost.reason is WaitReason.STOCK_OUT
    assert lost.message == "needs 32 CPUs on one node; the largest node has 16"
    assert explanation(cluster, 2) == Waiting(
        WaitReason.NO_NODE,
        "needs 16 CPUs on a node, and b is drained",
        "return b to service with: trainshed nodes drain b --undo",
    )
    nothing = SimulatedCluster([])
    nothing.wait(gang(1))
    assert explanation(nothing, 1) == Waiting(WaitReason.NO_NODE, "no node is known yet")


def test_wait_reason_shows_the_retry_delay_or_the_job_with_reserved_capacity() -> None:
    """The wait reason shows the delay between retries (spec/failures#no-capacity), or the reservation
    (spec/queue#order)."""
    cluster = SimulatedCluster([node("a", 8)])
    cluster.run(gang(1, 4), "a")
    cluster.wait(gang(2), not_before=NOW + 90 * SECOND)
    assert explanation(cluster, 2) == Waiting(WaitReason.BACK_OFF, "retries in 90 s")
    cluster.wait(gang(3, 8), gang(4))
    assert explanation(cluster, 4, NOW + MAX_WAIT) == Waiting(
        WaitReason.POLICY, "the capacity is reserved for job 3", None, (gang(3).name,)
    )


def test_wait_reason_names_the_replica_whose_node_is_no_longer_available() -> None:
    """spec/failures#maintenance: the message names the replica and its previous node."""
    cluster = SimulatedCluster([node("a", 4), node("b", 4)])
    cluster.put(GangState(gang(1, 4), unplaced=((ReplicaId(0, 0), "a"),)))
    cluster.run(gang(2, 2), "b")
    assert explanation(cluster, 1) == Waiting(
        WaitReason.CAPACITY,
        "workerpool0-0 lost its place on a and needs 4 CPUs on another node",
        None,
        (gang(2).name,),
    )


def test_wait_reason_does_not_name_jobs_of_other_projects() -> None:
    """Readers of this job may have no access to the other jobs. The message contains only the resource usage
    of those jobs."""
    cluster = SimulatedCluster([node("a", 8)])
    cluster.run(gang(1, 3, project="speech"), "a")
    cluster.run(gang(2, 1), "a")
    cluster.wait(gang(3, 8), gang(4, 1, project="speech"))
    assert explanation(cluster, 3).message == (
        "needs 8 CPUs, 4 of 8 are used by job 2 and jobs of other projects"
    )
    assert explanation(cluster, 3).blockers == (gang(2).name,)
    answer = preflight(cluster.snapshot.copy(), gang(9, 8, project="hearing"), NOW)
    assert answer.waiting is not None
    assert answer.waiting.message == "needs 8 CPUs, 4 of 8 are used by jobs of other projects"
    assert answer.waiting.blockers == ()


# Pre-flight


def test_preflight_considers_reservations_and_spot_jobs() -> None:
    """spec/submit#preflight: a preflight accounts for reserved capacity and for preemption of spot jobs."""
    cluster = SimulatedCluster([node("a", 8)])
    cluster.run(gang(1, 4), "a")
    cluster.wait(gang(2, 8), since=NOW - MAX_WAIT)
    answer = preflight(cluster.snapshot.copy(), gang(9, 1), NOW)
    assert answer.waiting == Waiting(
        WaitReason.POLICY, "the capacity is reserved for job 2", None, (gang(2).name,)
    )
    spot = SimulatedCluster([node("a", 8)])
    spot.run(gang(1, 8, spot=True), "a")
    answer = preflight(spot.snapshot, gang(9, 8), NOW)
    assert answer.waiting is not None
    hint = "would start as soon as job 1 had ended: spot jobs yield to it"
    assert answer.waiting.hint == hint


# Positions


def test_queue_position_counts_jobs_with_reservations_first() -> None:
    cluster = SimulatedCluster([node("a", 8)])
    cluster.run(gang(1, 4), "a")
    cluster.wait(gang(2, 8), since=NOW - MAX_WAIT)
    cluster.wait(gang(3, 1), gang(4, 1), gang(5, 1, project="q"))
    assert position(cluster.snapshot, JobUid(5)) == 1
    cluster.plan(NOW)
    assert [position(cluster.snapshot, JobUid(uid)) for uid in (2, 5, 3, 4)] == [1, 2, 3, 4]


# Reports


def test_node_and_quota_reports_show_used_and_total_resources() -> None:
    """The output of `trainshed nodes list` and `trainshed quotas` uses these reports."""
    key = QuotaKey("p", REGION, CPUS)
    cluster = SimulatedCluster(
        [node("a", 8, 16, gpus=2), node("b", condition=NodeCondition.GONE)], quotas={key: 6}
    )
    cluster.run(gang(1, 2.5, memory=4, gpus=1, quota=((CPUS, 2.5),)), "a")
    cluster.wait(gang(2, 4, quota=((CPUS, 4), ("pd_ssd_gb", 100))))
    first, second = node_statuses(
        cluster.snapshot, {"b": "it does not answer"}, cluster.snapshot.entries.values()
    )
    assert (first.used_vcpus, first.used_memory_bytes) == (2.5, 4 * GIB)
    assert first.used_accelerators == ((T4, 1),)
    assert first.replicas == (f"{gang(1).name} workerpool0-0",)
    assert (second.condition, second.cause) == (NodeCondition.GONE, "it does not answer")
    cpus, disk = quota_statuses(cluster.snapshot, "p")
    assert (cpus.limit, cpus.used, cpus.waiting) == (6, 2.5, 4)
    assert (disk.limit, disk.used, disk.waiting) == (None, 0, 100)
    assert quota_statuses(cluster.snapshot, "q") == ()


def test_reported_usage_of_a_node_never_exceeds_the_capacity_of_the_node() -> None:
    """spec/queue#capacity: in relaxed mode, one node may run replicas that requested more than it has."""
    cluster = SimulatedCluster([node("a", 8, 16, gpus=1)], Policy())
    cluster.run(gang(1, 6, replicas=2, memory=12, gpus=1), "a")
    (shared,) = node_statuses(cluster.snapshot, {}, cluster.snapshot.entries.values())
    assert (shared.used_vcpus, shared.used_memory_bytes) == (8, 16 * GIB)
    assert shared.used_accelerators == ((T4, 1),)


def test_wait_reason_counts_the_replicas_without_a_node() -> None:
    """spec/failures#maintenance: with several displaced replicas, the message starts with their number."""
    drained = NodeCondition.DRAINED
    cluster = SimulatedCluster([node("a", 4, condition=drained), node("b", 4, condition=drained)])
    lost = ((ReplicaId(0, 0), "a"), (ReplicaId(1, 0), "b"))
    cluster.put(GangState(gang(1, 4, replicas=2), unplaced=lost))
    assert explanation(cluster, 1) == Waiting(
        WaitReason.NO_NODE,
        "2 replicas wait for another node: workerpool0-0 lost its place on a;"
        " needs 4 CPUs on a node, and a is drained and b is drained",
        "return a drained node to service with: trainshed nodes drain NAME --undo",
    )
