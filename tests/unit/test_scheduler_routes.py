"""Where machines of some types may go: the scheduler places them nowhere else, and
says why one can go nowhere."""

import pytest
from msgspec.structs import replace

from tests.unit.clusters import NOW, T4, World, gang, node
from trainshed.core.capacity import Acceptance, NodeCondition, Route
from trainshed.core.names import JobUid
from trainshed.scheduler import explaining
from trainshed.scheduler.model import Admit, GangState, Place, StockOut
from trainshed.scheduler.planning import plan

ROUTES = (Route(("a2-*",), (), "partition gpu"), Route((), (T4,), "partition t4"), Route())


def taking(*ways: int) -> Acceptance:
    return Acceptance(ROUTES, frozenset(ways))


def admitted(world: World) -> dict[int, set[str]]:
    made = plan(world.snapshot.copy(), NOW).decisions
    return {d.uid: {name for _, name in d.nodes} for d in made if isinstance(d, Admit)}


def why(world: World, uid: int) -> str:
    waiting = explaining.why(world.snapshot, JobUid(uid), NOW)
    assert waiting
    return waiting.message


def test_replicas_go_only_where_their_machines_may() -> None:
    world = World([node("gpu", accepts=taking(0)), node("all", accepts=taking(0, 1, 2))])
    world.wait(gang(1, 4, machine="a2-highgpu-1g"), gang(2, 4, machine="n1-standard-4"))
    # What takes the fewest sorts is filled first.
    assert admitted(world) == {1: {"gpu"}, 2: {"all"}}


def test_what_is_free_elsewhere_does_not_count() -> None:
    world = World([node("gpu", accepts=taking(0)), node("rest", accepts=taking(2))])
    world.run(gang(1, 8, machine="a2-highgpu-1g"), "gpu")
    world.wait(gang(2, 4, machine="a2-highgpu-1g"))
    assert not admitted(world)
    assert why(world, 2) == "needs 4 CPUs on one node, and at most 0 are free on one now"


@pytest.mark.parametrize(
    ("machine", "cpus", "gpus", "reason"),
    [
        ("a2-highgpu-1g", 12, 0, "needs 12 CPUs on one node; the largest node of partition gpu has 8"),
        ("n1-standard-4", 4, 1, f"needs a node of partition t4, where n1-standard-4 with {T4} runs"),
        ("n1-standard-4", 12, 0, "needs 12 CPUs on one node; the largest node has 4"),
    ],
)  # fmt: skip
def test_a_machine_that_fits_nowhere_on_its_way_is_told_so(
    machine: str, cpus: int, gpus: int, reason: str
) -> None:
    world = World([node("gpu", 8, accepts=taking(0)), node("rest", 4, accepts=taking(2))])
    world.wait(gang(1, cpus, gpus=gpus, machine=machine))
    (refused,) = plan(world.snapshot.copy(), NOW).decisions
    assert isinstance(refused, StockOut) and refused.reason.startswith(reason)
    assert why(world, 1) == refused.reason


def test_a_replica_that_lost_its_place_keeps_to_its_way() -> None:
    world = World([node(name, accepts=taking(way)) for name, way in (("a", 0), ("b", 2))])
    job = gang(1, 1, 2, machine="a2-highgpu-1g")
    world.run(job, "a")
    primary, worker = (replica for replica, _ in job.replicas)
    world.put(GangState(job, places=((primary, "a"),), unplaced=((worker, "a"),)))
    assert plan(world.snapshot.copy(), NOW).decisions == (Place(job.uid, worker, "a"),)


def test_what_a_cluster_might_take_that_does_not_answer_waits_for_it() -> None:
    """No stock-out: nobody knows how large its nodes are."""
    silent = node("slurm", 0, 0, condition=NodeCondition.GONE)
    world = World([replace(silent, unreached="no slurmctld")])
    world.wait(gang(1, 64))
    assert not plan(world.snapshot.copy(), NOW).decisions
    assert why(world, 1) == "cluster slurm does not answer: no slurmctld"
    world.set_nodes([node("a", 64)])
    assert admitted(world) == {1: {"a"}}
