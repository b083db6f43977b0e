"""Why a job waits and what would let it start, in exact words (issue 3, point 3)."""

from tests.unit.clusters import GIB, NOW, REGION, SECOND, STRICT, T4, World, gang, node
from trainshed.core.capacity import NodeCondition, OthersUse, QuotaKey, Waiting, WaitReason
from trainshed.core.names import JobUid, ReplicaId
from trainshed.scheduler.explaining import node_statuses, preflight, quota_statuses, why
from trainshed.scheduler.fair_share import position
from trainshed.scheduler.model import GangState, Policy

CPUS = "cpus_n1_e2"
PATIENT = STRICT.patience


def said(world: World, uid: int, now: int = NOW) -> Waiting:
    world.plan(now)
    reasons = why(world.snapshot, JobUid(uid), now)
    assert reasons is not None
    return reasons


def test_the_one_node_is_too_full() -> None:
    """spec/operations#why-it-waits: says at every moment why a job waits."""
    world = World([node("a", 8)])
    world.run(gang(17, 4), "a")
    world.wait(gang(18, 1, replicas=8))
    assert said(world, 18) == Waiting(
        WaitReason.CAPACITY, "needs 8 CPUs, 4 of 8 are used by job 17", None, (gang(17).name,)
    )


def test_the_nodes_are_too_full() -> None:
    """spec/operations#why-it-waits."""
    world = World([node("a", 8, gpus=4), node("b", 8, gpus=2)])
    world.run(gang(1, 2, gpus=3), "a", until=NOW + 5)
    world.wait(
        gang(2, 2, gpus=4), gang(3, 8), gang(4, 1, replicas=3, gpus=2), gang(5, 1, memory=64)
    )
    assert said(world, 2).message == f"needs 4 {T4} on one node, and at most 2 are free on one now"
    assert said(world, 2).blockers == (gang(1).name,)
    world.run(gang(6, 2), "b")
    assert said(world, 3).message == "needs 8 CPUs on one node, and at most 6 are free on one now"
    assert said(world, 4).message == (
        f"needs capacity for 3 replicas of 1 CPU and 2 {T4}, and there is capacity for 1 now"
    )
    world.run(gang(7, 1, memory=1), "a")
    world.run(gang(8, 1, memory=2), "b")
    assert said(world, 5).message == (
        "needs 64 GiB of memory on one node, and at most 63 GiB are free on one now"
    )


def test_others_use_the_nodes() -> None:
    """What others use is waited for; only what is larger than a whole node is refused."""
    theirs = OthersUse(6, 4 * GIB)
    world = World([node("a", 8, others=theirs), node("b", 8), node("c", 4)])
    world.run(gang(1, 1), "b")
    world.wait(gang(2, 8))
    assert said(world, 2) == Waiting(
        WaitReason.CAPACITY,
        "needs 8 CPUs on one node, and at most 7 are free on one now; programs outside the service use a",
        None,
        (gang(1).name,),
    )
    world.set_nodes([node("a", 8), node("b", 8), node("c", 4, others=theirs)])
    assert world.admitted() == [2]
    world.wait(gang(3, 9))
    assert said(world, 3).reason is WaitReason.STOCK_OUT
    alone = World([node("a", 8, gpus=2, others=OthersUse(6, 0, ((T4, 2),)))])
    alone.wait(gang(2, 4), gang(3, 1, gpus=1))
    assert said(alone, 2).message == "needs 4 CPUs, 6 of 8 are used outside the service"
    assert said(alone, 3).message == f"needs 1 {T4}, 2 of 2 are used outside the service"
    alone.run(gang(1, 1), "a")
    assert said(alone, 2).message == "needs 4 CPUs, 1 of 8 are used by job 1 and 6 by others"


def test_the_quota_is_used_up() -> None:
    """spec/queue#order."""
    world = World([node("a", 64)], quotas={QuotaKey("p", REGION, CPUS): 8})
    world.run(gang(1, 4, quota=((CPUS, 4),)), "a")
    world.wait(gang(2, 2, replicas=4, quota=((CPUS, 8),)), gang(3, 9, quota=((CPUS, 9),)))
    assert said(world, 2) == Waiting(
        WaitReason.QUOTA,
        f"needs 8 {CPUS} in {REGION}, 4 of 8 are used by job 1",
        f"an owner can raise the limit: trainshed quotas set {CPUS} 12 --project p --region {REGION}",
        (gang(1).name,),
    )
    assert said(world, 3) == Waiting(
        WaitReason.QUOTA,
        f"needs 9 {CPUS} in {REGION}, and the project's quota is 8",
        f"an owner can raise the limit: trainshed quotas set {CPUS} 13 --project p --region {REGION}",
        (gang(1).name,),
    )


def test_the_number_of_replicas_is_reached() -> None:
    """spec/queue#capacity."""
    world = World([node("a")], Policy(max_replicas=4))
    world.run(gang(1, replicas=2), "a")
    world.wait(gang(2, replicas=4))
    assert said(world, 2) == Waiting(
        WaitReason.REPLICA_LIMIT,
        "needs 4 replicas, and 2 of 4 replicas that may run at once are in use",
        None,
        (gang(1).name,),
    )


def test_no_node_could_ever_do_or_none_can_now() -> None:
    """spec/queue#capacity."""
    world = World([node("a", 4), node("b", 16, condition=NodeCondition.DRAINED)])
    world.wait(gang(1, 32), gang(2, 16))
    lost = said(world, 1)
    assert lost.reason is WaitReason.STOCK_OUT
    assert lost.message == "needs 32 CPUs on one node; the largest node has 16"
    assert said(world, 2) == Waiting(
        WaitReason.NO_NODE,
        "needs 16 CPUs on a node, and b is drained",
        "return b to service with: trainshed nodes drain b --undo",
    )
    nothing = World([])
    nothing.wait(gang(1))
    assert said(nothing, 1) == Waiting(WaitReason.NO_NODE, "no node is known yet")


def test_it_pauses_or_it_is_not_its_turn() -> None:
    """spec/failures#no-capacity, back-off; spec/queue#order."""
    world = World([node("a", 8)])
    world.run(gang(1, 4), "a")
    world.wait(gang(2), not_before=NOW + 90 * SECOND)
    assert said(world, 2) == Waiting(WaitReason.BACK_OFF, "retries in 90 s")
    world.wait(gang(3, 8), gang(4))
    assert said(world, 4, NOW + PATIENT) == Waiting(
        WaitReason.POLICY, "the capacity is reserved for job 3", None, (gang(3).name,)
    )


def test_a_replica_without_a_place_says_so() -> None:
    """spec/failures#maintenance."""
    world = World([node("a", 4), node("b", 4)])
    world.put(GangState(gang(1, 4), unplaced=((ReplicaId(0, 0), "a"),)))
    world.run(gang(2, 2), "b")
    assert said(world, 1) == Waiting(
        WaitReason.CAPACITY,
        "workerpool0-0 lost its place on a and needs 4 CPUs on another node",
        None,
        (gang(2).name,),
    )


def test_jobs_of_other_projects_are_not_named() -> None:
    """Who may see this job need not see those; how much they have is told."""
    world = World([node("a", 8)])
    world.run(gang(1, 3, project="speech"), "a")
    world.run(gang(2, 1), "a")
    world.wait(gang(3, 8), gang(4, 1, project="speech"))
    assert said(world, 3).message == (
        "needs 8 CPUs, 4 of 8 are used by job 2 and jobs of other projects"
    )
    assert said(world, 3).blockers == (gang(2).name,)
    answer = preflight(world.snapshot.copy(), gang(9, 8, project="hearing"), NOW)
    assert answer.waiting is not None
    assert answer.waiting.message == "needs 8 CPUs, 4 of 8 are used by jobs of other projects"
    assert answer.waiting.blockers == ()


# Pre-flight


def test_preflight_knows_of_room_that_is_kept_and_of_spot_work() -> None:
    """spec/submit#preflight."""
    world = World([node("a", 8)])
    world.run(gang(1, 4), "a")
    world.wait(gang(2, 8), since=NOW - PATIENT)
    answer = preflight(world.snapshot.copy(), gang(9, 1), NOW)
    assert answer.waiting == Waiting(
        WaitReason.POLICY, "the capacity is reserved for job 2", None, (gang(2).name,)
    )
    spot = World([node("a", 8)])
    spot.run(gang(1, 8, spot=True), "a")
    answer = preflight(spot.snapshot, gang(9, 8), NOW)
    assert answer.waiting is not None
    hint = "would start as soon as job 1 had ended: spot jobs yield to it"
    assert answer.waiting.hint == hint


# Positions


def test_for_whom_something_is_reserved_counts_first() -> None:
    world = World([node("a", 8)])
    world.run(gang(1, 4), "a")
    world.wait(gang(2, 8), since=NOW - PATIENT)
    world.wait(gang(3, 1), gang(4, 1), gang(5, 1, project="q"))
    assert position(world.snapshot, JobUid(5)) == 1
    world.plan(NOW)
    assert [position(world.snapshot, JobUid(uid)) for uid in (2, 5, 3, 4)] == [1, 2, 3, 4]


# Reports


def test_nodes_and_quotas_are_reported_with_what_is_used() -> None:
    """Issue 3, points 3 and 4: `trainshed nodes list`, `trainshed quotas`."""
    key = QuotaKey("p", REGION, CPUS)
    world = World(
        [node("a", 8, 16, gpus=2), node("b", condition=NodeCondition.GONE)], quotas={key: 6}
    )
    world.run(gang(1, 2.5, memory=4, gpus=1, quota=((CPUS, 2.5),)), "a")
    world.wait(gang(2, 4, quota=((CPUS, 4), ("pd_ssd_gb", 100))))
    first, second = node_statuses(
        world.snapshot, {"b": "it does not answer"}, world.snapshot.entries.values()
    )
    assert (first.used_vcpus, first.used_memory_bytes) == (2.5, 4 * GIB)
    assert first.used_accelerators == ((T4, 1),)
    assert first.replicas == (f"{gang(1).name} workerpool0-0",)
    assert (second.condition, second.cause) == (NodeCondition.GONE, "it does not answer")
    cpus, disk = quota_statuses(world.snapshot, "p")
    assert (cpus.limit, cpus.used, cpus.waiting) == (6, 2.5, 4)
    assert (disk.limit, disk.used, disk.waiting) == (None, 0, 100)
    assert quota_statuses(world.snapshot, "q") == ()


def test_replicas_that_share_a_node_never_use_more_than_it_has() -> None:
    """spec/queue#capacity, relaxed mode: after a drain one node may have what asked for two."""
    world = World([node("a", 8, 16, gpus=1)], Policy())
    world.run(gang(1, 6, replicas=2, memory=12, gpus=1), "a")
    (shared,) = node_statuses(world.snapshot, {}, world.snapshot.entries.values())
    assert (shared.used_vcpus, shared.used_memory_bytes) == (8, 16 * GIB)
    assert shared.used_accelerators == ((T4, 1),)


def test_of_several_replicas_without_a_place_the_number_is_said() -> None:
    """spec/failures#maintenance."""
    drained = NodeCondition.DRAINED
    world = World([node("a", 4, condition=drained), node("b", 4, condition=drained)])
    lost = ((ReplicaId(0, 0), "a"), (ReplicaId(1, 0), "b"))
    world.put(GangState(gang(1, 4, replicas=2), unplaced=lost))
    assert said(world, 1) == Waiting(
        WaitReason.NO_NODE,
        "2 replicas wait for another node: workerpool0-0 lost its place on a;"
        " needs 4 CPUs on a node, and a is drained and b is drained",
        "return a drained node to service with: trainshed nodes drain NAME --undo",
    )
