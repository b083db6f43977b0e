"""Scheduling rules of spec/queue, each in its own test: admission, waiting and preemption."""

import pytest

from tests.unit.clusters import NOW, REGION, SECOND, STRICT, V100, SimulatedCluster, gang, node
from trainshed.core.capacity import NodeCondition, QuotaKey
from trainshed.core.names import JobUid, ReplicaId
from trainshed.scheduler import planning
from trainshed.scheduler.model import Admit, GangRequest, GangState, Place, Policy, Preempt, StockOut

MAX_WAIT = STRICT.patience
CPUS = "cpus_n1_e2"


# Order


def test_fair_share_uses_the_dominant_resource_of_a_project() -> None:
    """spec/queue#capacity: the use of all GPUs is a larger share than the use of a few CPUs."""
    cluster = SimulatedCluster([node("a", 8, gpus=2), node("b", 8)])
    cluster.run(gang(1, 1, gpus=2, project="devices"), "a")
    cluster.run(gang(2, 4, project="cpus"), "b")
    cluster.wait(gang(3, 11, project="devices"), gang(4, 4, project="cpus"), gang(5, 4, project="devices"))
    assert cluster.admitted_jobs()[0] == 4


# Quotas


def test_used_up_quota_of_a_project_does_not_block_jobs_of_other_projects() -> None:
    """spec/queue#quotas: a job waits while the quota of its project in that region is used up."""
    cluster = SimulatedCluster([node("a", 64)], quotas={QuotaKey("p", REGION, CPUS): 4})
    cluster.run(gang(1, 3, quota=((CPUS, 3),)), "a")
    cluster.wait(gang(2, 2, quota=((CPUS, 2),)))
    cluster.wait(gang(3, 2, quota=((CPUS, 2),), project="q"), gang(4, 2), since=NOW)
    assert sorted(cluster.admitted_jobs()) == [3, 4]
    assert sorted(cluster.admitted_jobs(NOW + 2 * MAX_WAIT)) == [3, 4]  # also after a long wait


def test_oversized_job_is_rejected_despite_a_used_up_quota() -> None:
    """spec/queue#capacity: current usage of nodes and quotas does not matter."""
    cluster = SimulatedCluster([node("a", 8)], quotas={QuotaKey("p", REGION, CPUS): 4})
    cluster.run(gang(1, 4, quota=((CPUS, 4),)), "a")
    cluster.wait(gang(2, 2, quota=((CPUS, 2),)), gang(3, 16, quota=((CPUS, 16),)))
    reason = "needs 16 CPUs on one node; the largest node has 8"
    assert cluster.plan().decisions == (StockOut(JobUid(3), reason),)


def test_long_waiting_job_gets_quota_before_newer_jobs() -> None:
    """spec/queue#order: small jobs never starve a large job."""
    cluster = SimulatedCluster([node("a", 64)], quotas={QuotaKey("p", REGION, CPUS): 4})
    cluster.run(gang(1, 1, quota=((CPUS, 2),)), "a", until=NOW + 3000 * SECOND)
    cluster.wait(gang(2, 4, quota=((CPUS, 4),)), gang(3, 1, quota=((CPUS, 1),)))
    assert cluster.admitted_jobs() == [3]
    assert cluster.admitted_jobs(NOW + MAX_WAIT) == []


# Gangs


def test_job_is_placed_on_the_fullest_node_with_enough_capacity() -> None:
    """spec/queue#capacity: large free nodes remain available for large jobs."""
    cluster = SimulatedCluster([node("a", 8), node("b", 4)])
    cluster.wait(gang(1, 2), gang(2, 8))
    made = {d.uid: d.nodes[0][1] for d in cluster.plan().decisions if isinstance(d, Admit)}
    assert made == {1: "b", 2: "a"}


def test_cpu_jobs_avoid_gpu_nodes() -> None:
    """spec/queue#capacity: GPU nodes remain free for jobs that need GPUs."""
    cluster = SimulatedCluster([node("a", 4, gpus=4), node("b", 32)])
    cluster.wait(gang(1, 4), gang(2, 4, gpus=4))
    assert len(cluster.admitted_jobs()) == 2


def test_relaxed_mode_spreads_replicas_over_nodes_and_admits_oversized_jobs() -> None:
    """spec/queue#capacity: in relaxed mode the host runs any valid job, regardless of its size."""
    cluster = SimulatedCluster([node("a", 1), node("b", 1)], Policy(max_replicas=4))
    cluster.wait(gang(1, 900, replicas=5))
    (made,) = cluster.step(NOW).decisions
    assert isinstance(made, Admit) and [name for _, name in made.nodes].count("a") == 3
    cluster.wait(gang(2))
    assert cluster.admitted_jobs() == []
    cluster.end(1)
    assert cluster.admitted_jobs() == [2]


# Backfill


def test_small_jobs_no_longer_start_first_when_a_large_job_has_waited_too_long() -> None:
    """spec/queue#order: small jobs may be backfilled but never starve a large job."""
    cluster = SimulatedCluster([node("a", 8)])
    cluster.run(gang(1, 4), "a", until=NOW + 3600 * SECOND)
    cluster.wait(gang(2, 8), gang(3, 1))
    assert cluster.admitted_jobs() == [3]
    assert cluster.admitted_jobs(NOW + MAX_WAIT) == []


def test_capacity_that_is_not_reserved_is_available_to_later_jobs() -> None:
    """spec/queue#order: a reservation only blocks the capacity that the waiting job needs."""
    for used, starts in (8, [3]), (4, [3, 4]):  # node a has two CPUs more than job 2 needs
        cluster = SimulatedCluster([node("a", 8), node("b", 4)])
        cluster.run(gang(1, used), "a", until=NOW + 3600 * SECOND)
        cluster.wait(gang(2, 6), gang(3, 4), gang(4, 1))
        assert cluster.admitted_jobs(NOW + MAX_WAIT) == starts


def test_job_with_higher_priority_ignores_reservations_of_lower_priority_jobs() -> None:
    """spec/queue#order: priority takes precedence over all other rules."""
    cluster = SimulatedCluster([node("a", 8)])
    cluster.run(gang(1, 4), "a")
    cluster.wait(gang(2, 8), gang(3, 1, priority=1))
    assert cluster.admitted_jobs(NOW + MAX_WAIT) == [3]


def test_waiting_job_is_admitted_as_soon_as_the_retry_delay_has_passed() -> None:
    """spec/failures#no-capacity: a stock-out is retried with increasing delays."""
    cluster = SimulatedCluster([node("a")])
    cluster.wait(gang(1), not_before=NOW + 30)
    made = cluster.plan()
    assert (made.decisions, made.next_plan_at) == ((), NOW + 30)
    assert cluster.admitted_jobs(NOW + 30) == [1]


# Stock-outs


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (gang(1, 4, gpus=8, kind=V100), "needs 8 NVIDIA_TESLA_V100 on one node; the largest node has 2"),
        (gang(1, 4, gpus=1, kind="TPU_V2"), "needs 1 TPU_V2 on one node; no node has any"),
        (gang(1, 96), "needs 96 CPUs on one node; the largest node has 16"),
        (gang(1, 1, memory=100), "needs 100 GiB of memory on one node; the largest node has 64 GiB"),
        (
            gang(1, 16, memory=1, gpus=1, kind=V100),
            "needs 16 CPUs, 1 GiB and 1 NVIDIA_TESLA_V100 on one node; no node has all of it",
        ),
        (gang(1, 8, replicas=4), "needs 4 replicas at once, 8 CPUs each, "
            "and there is capacity for 3 of them"),
    ],
    ids=["gpus", "no-gpus", "cpus", "memory", "combination", "gang"],
)  # fmt: skip
def test_job_that_no_node_can_ever_run_is_rejected_as_stock_out(wanted: GangRequest, reason: str) -> None:
    """spec/queue#capacity: current usage does not matter, and the reason names the missing resource."""
    cluster = SimulatedCluster([node("a", 8, gpus=2, kind=V100), node("b", 16)])
    cluster.run(gang(9, 16), "b")
    cluster.wait(wanted)
    assert cluster.plan().decisions == (StockOut(JobUid(1), reason),)


def test_relaxed_mode_never_reports_a_stock_out_and_jobs_wait_for_nodes() -> None:
    """spec/queue#capacity: in relaxed mode, every job fits. Without nodes, all jobs wait."""
    cluster = SimulatedCluster([], Policy())
    cluster.wait(gang(1, 999))
    assert cluster.plan().decisions == ()
    cluster.set_nodes([node("a", 1)])
    assert cluster.admitted_jobs() == [1]
    strict = SimulatedCluster([])
    strict.wait(gang(1))
    assert strict.plan().decisions == ()


def test_jobs_beyond_the_limit_of_a_scheduler_plan_are_admitted_by_the_next_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """spec/queue#order: all jobs are admitted in order."""
    monkeypatch.setattr(planning, "MAX_ADMISSIONS", 2)
    cluster = SimulatedCluster([node("a", 8)])
    cluster.wait(gang(1, 1), gang(2, 1), gang(3, 1))
    first = cluster.step(NOW)
    assert [d.uid for d in first.decisions] == [1, 2]
    assert first.next_plan_at == NOW
    assert [d.uid for d in cluster.step(NOW).decisions] == [3]


# Replicas that lost their place


def test_displaced_replica_is_placed_before_waiting_jobs_and_on_a_different_node() -> None:
    """spec/failures#maintenance: the replica moves if its node is lost or drained."""
    cluster = SimulatedCluster([node("a", 4), node("b", 4)])
    cluster.put(GangState(gang(1, 4), unplaced=((ReplicaId(0, 0), "a"),)))
    cluster.wait(gang(2, 4, priority=9))
    assert cluster.plan().decisions == (
        Place(JobUid(1), ReplicaId(0, 0), "b"),
        Admit(JobUid(2), ((ReplicaId(0, 0), "a"),)),
    )


@pytest.mark.parametrize("policy", [STRICT, Policy()], ids=["strict", "relaxed"])
def test_displaced_replica_returns_to_the_old_node_only_without_alternatives(policy: Policy) -> None:
    """spec/failures#maintenance: another node is preferred, and a drained node is never used."""
    cluster = SimulatedCluster([node("a", 4)], policy)
    cluster.put(GangState(gang(1, 4), unplaced=((ReplicaId(0, 0), "a"),)))
    assert cluster.plan().decisions == (Place(JobUid(1), ReplicaId(0, 0), "a"),)
    cluster.set_nodes([node("a", 4, condition=NodeCondition.DRAINED)])
    assert cluster.plan().decisions == ()


def test_capacity_is_reserved_immediately_for_a_displaced_replica_that_must_wait() -> None:
    """spec/queue#order: waiting jobs do not delay running jobs."""
    drained = node("a", 4, condition=NodeCondition.DRAINED)
    cluster = SimulatedCluster([drained, node("b", 4)])
    cluster.put(GangState(gang(1, 4), unplaced=((ReplicaId(0, 0), "a"),)))
    cluster.run(gang(2, 2), "b")
    cluster.wait(gang(3, 1), gang(4, 2))
    assert cluster.plan().decisions == ()  # on b, it would block job 1


# Spot


def preemption(uid: int, by: int) -> Preempt:
    name = gang(by).name
    return Preempt(JobUid(uid), f"its capacity went to {name}", name)


def test_on_demand_job_preempts_the_newest_spot_job() -> None:
    """spec/failures#preemption: of two equal spot jobs, the newer one is preempted."""
    cluster = SimulatedCluster([node("a", 8)])
    cluster.run(gang(1, 4, spot=True), "a")
    cluster.run(gang(2, 4, spot=True), "a")
    cluster.wait(gang(3, 4))
    assert cluster.plan().decisions == (preemption(2, by=3),)


def test_displaced_spot_replica_does_not_take_capacity_of_on_demand_jobs() -> None:
    cluster = SimulatedCluster([node("a", 4)])
    lost = gang(2, 1, spot=True)
    cluster.put(GangState(lost, unplaced=((lost.replicas[0][0], "a"),)))
    cluster.wait(gang(1, 4, priority=9), gang(3, 0.5))
    assert cluster.admitted_jobs() == [1]


def test_preemption_message_does_not_name_jobs_of_other_projects() -> None:
    cluster = SimulatedCluster([node("a", 8)])
    cluster.run(gang(1, 8, spot=True), "a")
    cluster.wait(gang(2, 8, project="speech"))
    reason = "its capacity went to a job of another project"
    assert cluster.plan().decisions == (Preempt(JobUid(1), reason, gang(2, project="speech").name),)


def test_preempted_capacity_is_reserved_for_the_preempting_job() -> None:
    """spec/failures#preemption: smaller jobs cannot take the capacity during the grace period."""
    cluster = SimulatedCluster([node("a", 8)])
    cluster.run(gang(1, 4, spot=True), "a")
    cluster.wait(gang(2, 8), gang(3, 1))
    made = cluster.step(NOW)
    assert made.decisions == (preemption(1, by=2),)
    assert cluster.plan().decisions == ()
    cluster.end(1)
    assert cluster.admitted_jobs() == [2]


def test_quota_shortage_preempts_only_spot_jobs_of_the_project_with_the_shortage() -> None:
    """spec/failures#preemption: spot jobs of other projects do not use the project's quota."""
    disk = "pd_ssd_gb"
    cluster = SimulatedCluster([node("a", 8)], quotas={QuotaKey("p", REGION, disk): 200})
    cluster.run(gang(1, 1, spot=True, quota=((disk, 200),)), "a")
    cluster.run(gang(2, 1, spot=True, quota=((disk, 200),), project="q"), "a")
    cluster.wait(gang(3, 1, quota=((disk, 100),)))
    assert cluster.preempted_jobs() == [1]


def test_spot_job_is_not_admitted_before_a_waiting_on_demand_job() -> None:
    """spec/queue#order: otherwise the on-demand job would preempt the spot job immediately."""
    cluster = SimulatedCluster([node("a", 8)])
    cluster.wait(gang(1, 8, spot=True), gang(2, 8))
    assert cluster.admitted_jobs() == [2]
