"""Who starts, who waits, who yields: the rules of spec/queue, one by one."""

import pytest

from tests.unit.clusters import NOW, REGION, SECOND, STRICT, V100, World, gang, node
from trainshed.core.capacity import NodeCondition, QuotaKey
from trainshed.core.names import JobUid, ReplicaId
from trainshed.scheduler import planning
from trainshed.scheduler.model import (
    Admit,
    GangRequest,
    GangState,
    Place,
    Policy,
    Preempt,
    StockOut,
)

PATIENT = STRICT.patience
CPUS = "cpus_n1_e2"


# Order


def test_a_share_is_that_of_the_resource_a_project_uses_most_of() -> None:
    """spec/queue#capacity: dominant share: all devices count more than a few CPUs."""
    world = World([node("a", 8, gpus=2), node("b", 8)])
    world.run(gang(1, 1, gpus=2, project="devices"), "a")
    world.run(gang(2, 4, project="cpus"), "b")
    world.wait(
        gang(3, 11, project="devices"), gang(4, 4, project="cpus"), gang(5, 4, project="devices")
    )
    assert world.admitted()[0] == 4


# Quotas


def test_a_used_up_quota_holds_back_its_own_project_only() -> None:
    """spec/queue#quotas: a job waits while its project's quota for that region is used up."""
    world = World([node("a", 64)], quotas={QuotaKey("p", REGION, CPUS): 4})
    world.run(gang(1, 3, quota=((CPUS, 3),)), "a")
    world.wait(gang(2, 2, quota=((CPUS, 2),)))
    world.wait(gang(3, 2, quota=((CPUS, 2),), project="q"), gang(4, 2), since=NOW)
    assert sorted(world.admitted()) == [3, 4]
    assert sorted(world.admitted(NOW + 2 * PATIENT)) == [3, 4]  # nor when it has waited long


def test_what_can_never_fit_is_told_though_its_quota_is_used_up() -> None:
    """spec/queue#capacity: whatever is used now, of quotas as well."""
    world = World([node("a", 8)], quotas={QuotaKey("p", REGION, CPUS): 4})
    world.run(gang(1, 4, quota=((CPUS, 4),)), "a")
    world.wait(gang(2, 2, quota=((CPUS, 2),)), gang(3, 16, quota=((CPUS, 16),)))
    reason = "needs 16 CPUs on one node; the largest node has 8"
    assert world.plan().decisions == (StockOut(JobUid(3), reason),)


def test_an_impatient_job_gets_its_quota_before_younger_ones_of_its_project() -> None:
    """spec/queue#order: small jobs never starve a big one."""
    world = World([node("a", 64)], quotas={QuotaKey("p", REGION, CPUS): 4})
    world.run(gang(1, 1, quota=((CPUS, 2),)), "a", until=NOW + 3000 * SECOND)
    world.wait(gang(2, 4, quota=((CPUS, 4),)), gang(3, 1, quota=((CPUS, 1),)))
    assert world.admitted() == [3]
    assert world.admitted(NOW + PATIENT) == []


# Gangs


def test_the_fullest_node_that_holds_it_is_taken() -> None:
    """spec/queue#capacity: big holes are kept for big jobs."""
    world = World([node("a", 8), node("b", 4)])
    world.wait(gang(1, 2), gang(2, 8))
    made = {d.uid: d.nodes[0][1] for d in world.plan().decisions if isinstance(d, Admit)}
    assert made == {1: "b", 2: "a"}


def test_work_without_devices_stays_away_from_nodes_that_have_them() -> None:
    """spec/queue#capacity."""
    world = World([node("a", 4, gpus=4), node("b", 32)])
    world.wait(gang(1, 4), gang(2, 4, gpus=4))
    assert len(world.admitted()) == 2


def test_relaxed_gangs_are_dealt_evenly_and_one_too_large_runs_alone() -> None:
    """spec/queue#capacity: any valid spec runs on what the host has, however large."""
    world = World([node("a", 1), node("b", 1)], Policy(max_replicas=4))
    world.wait(gang(1, 900, replicas=5))
    (made,) = world.step(NOW).decisions
    assert isinstance(made, Admit) and [name for _, name in made.nodes].count("a") == 3
    world.wait(gang(2))
    assert world.admitted() == []
    world.end(1)
    assert world.admitted() == [2]


# Backfill


def test_a_job_is_overtaken_until_its_patience_is_over() -> None:
    """spec/queue#order: small jobs may be backfilled but never starve a big one."""
    world = World([node("a", 8)])
    world.run(gang(1, 4), "a", until=NOW + 3600 * SECOND)
    world.wait(gang(2, 8), gang(3, 1))
    assert world.admitted() == [3]
    assert world.admitted(NOW + PATIENT) == []


def test_what_an_impatient_job_does_not_need_is_free_for_others() -> None:
    """spec/queue#order."""
    for used, starts in (8, [3]), (4, [3, 4]):  # two CPUs of a are spare beside job 2
        world = World([node("a", 8), node("b", 4)])
        world.run(gang(1, used), "a", until=NOW + 3600 * SECOND)
        world.wait(gang(2, 6), gang(3, 4), gang(4, 1))
        assert world.admitted(NOW + PATIENT) == starts


def test_a_higher_priority_does_not_wait_for_an_impatient_job() -> None:
    """spec/queue#order: priority comes before everything."""
    world = World([node("a", 8)])
    world.run(gang(1, 4), "a")
    world.wait(gang(2, 8), gang(3, 1, priority=1))
    assert world.admitted(NOW + PATIENT) == [3]


def test_a_pause_is_kept_and_ends_by_time_alone() -> None:
    """spec/failures#no-capacity: a stock-out is retried with back-off."""
    world = World([node("a")])
    world.wait(gang(1), not_before=NOW + 30)
    made = world.plan()
    assert (made.decisions, made.look_again) == ((), NOW + 30)
    assert world.admitted(NOW + 30) == [1]


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
    ids=["devices", "no-devices", "cpus", "memory", "together", "gang"],
)  # fmt: skip
def test_what_can_never_fit_is_a_stock_out(wanted: GangRequest, reason: str) -> None:
    """spec/queue#capacity: whatever is used now; the reason names what is missing."""
    world = World([node("a", 8, gpus=2, kind=V100), node("b", 16)])
    world.run(gang(9, 16), "b")
    world.wait(wanted)
    assert world.plan().decisions == (StockOut(JobUid(1), reason),)


def test_relaxed_mode_knows_no_stock_out_and_no_nodes_mean_waiting() -> None:
    """spec/queue#capacity."""
    world = World([], Policy())
    world.wait(gang(1, 999))
    assert world.plan().decisions == ()
    world.set_nodes([node("a", 1)])
    assert world.admitted() == [1]
    strict = World([])
    strict.wait(gang(1))
    assert strict.plan().decisions == ()


def test_a_plan_starts_so_many_jobs_and_the_next_one_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """spec/queue#order: in their order, none forgotten."""
    monkeypatch.setattr(planning, "MAX_ADMISSIONS", 2)
    world = World([node("a", 8)])
    world.wait(gang(1, 1), gang(2, 1), gang(3, 1))
    first = world.step(NOW)
    assert [d.uid for d in first.decisions] == [1, 2]
    assert first.look_again == NOW
    assert [d.uid for d in world.step(NOW).decisions] == [3]


# Replicas that lost their place


def test_a_homeless_replica_comes_before_all_that_wait_and_goes_elsewhere() -> None:
    """spec/failures#maintenance: on another node if its node is gone or draining."""
    world = World([node("a", 4), node("b", 4)])
    world.put(GangState(gang(1, 4), unplaced=((ReplicaId(0, 0), "a"),)))
    world.wait(gang(2, 4, priority=9))
    assert world.plan().decisions == (
        Place(JobUid(1), ReplicaId(0, 0), "b"),
        Admit(JobUid(2), ((ReplicaId(0, 0), "a"),)),
    )


@pytest.mark.parametrize("policy", [STRICT, Policy()], ids=["strict", "relaxed"])
def test_a_replica_goes_back_only_where_there_is_no_other_node(policy: Policy) -> None:
    """spec/failures."""
    world = World([node("a", 4)], policy)
    world.put(GangState(gang(1, 4), unplaced=((ReplicaId(0, 0), "a"),)))
    assert world.plan().decisions == (Place(JobUid(1), ReplicaId(0, 0), "a"),)
    world.set_nodes([node("a", 4, condition=NodeCondition.DRAINED)])
    assert world.plan().decisions == ()


def test_room_is_kept_for_a_homeless_replica_at_once() -> None:
    """spec/queue#order: what runs already is not held up by what waits."""
    drained = node("a", 4, condition=NodeCondition.DRAINED)
    world = World([drained, node("b", 4)])
    world.put(GangState(gang(1, 4), unplaced=((ReplicaId(0, 0), "a"),)))
    world.run(gang(2, 2), "b")
    world.wait(gang(3, 1), gang(4, 2))
    assert world.plan().decisions == ()  # on b it would be in the way of job 1


# Spot


def preempted(uid: int, by: int) -> Preempt:
    name = gang(by).name
    return Preempt(JobUid(uid), f"its capacity went to {name}", name)


def test_on_demand_work_takes_the_room_of_the_youngest_spot_job() -> None:
    """spec/failures#preemption."""
    world = World([node("a", 8)])
    world.run(gang(1, 4, spot=True), "a")
    world.run(gang(2, 4, spot=True), "a")
    world.wait(gang(3, 4))
    assert world.plan().decisions == (preempted(2, by=3),)


def test_spot_work_that_lost_a_place_takes_no_room_that_on_demand_work_waits_for() -> None:
    world = World([node("a", 4)])
    lost = gang(2, 1, spot=True)
    world.put(GangState(lost, unplaced=((lost.replicas[0][0], "a"),)))
    world.wait(gang(1, 4, priority=9), gang(3, 0.5))
    assert world.admitted() == [1]


def test_a_preempted_job_does_not_name_one_of_another_project() -> None:
    world = World([node("a", 8)])
    world.run(gang(1, 8, spot=True), "a")
    world.wait(gang(2, 8, project="speech"))
    reason = "its capacity went to a job of another project"
    assert world.plan().decisions == (Preempt(JobUid(1), reason, gang(2, project="speech").name),)


def test_room_that_was_made_is_not_given_to_others() -> None:
    """spec/failures#preemption."""
    world = World([node("a", 8)])
    world.run(gang(1, 4, spot=True), "a")
    world.wait(gang(2, 8), gang(3, 1))
    made = world.step(NOW)
    assert made.decisions == (preempted(1, by=2),)
    assert world.plan().decisions == ()
    world.end(1)
    assert world.admitted() == [2]


def test_spot_work_yields_its_quota_within_its_project() -> None:
    """spec/failures#preemption."""
    disk = "pd_ssd_gb"
    world = World([node("a", 8)], quotas={QuotaKey("p", REGION, disk): 200})
    world.run(gang(1, 1, spot=True, quota=((disk, 200),)), "a")
    world.run(gang(2, 1, spot=True, quota=((disk, 200),), project="q"), "a")
    world.wait(gang(3, 1, quota=((disk, 100),)))
    assert world.preempted() == [1]


def test_spot_work_is_not_started_where_on_demand_work_would_take_its_room_again() -> None:
    """spec/queue#order."""
    world = World([node("a", 8)])
    world.wait(gang(1, 8, spot=True), gang(2, 8))
    assert world.admitted() == [2]
