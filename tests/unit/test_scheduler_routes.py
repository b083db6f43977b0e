"""Routes of machine types: the scheduler uses only accepting nodes, and reports machine types without any."""

import pytest
from msgspec.structs import replace

from tests.unit.clusters import NOW, T4, SimulatedCluster, gang, node
from trainshed.core.capacity import Acceptance, NodeCondition, Route
from trainshed.core.names import JobUid
from trainshed.scheduler import explaining
from trainshed.scheduler.model import Admit, GangState, Place, StockOut
from trainshed.scheduler.planning import plan

ROUTES = (Route(("a2-*",), (), "partition gpu"), Route((), (T4,), "partition t4"), Route())


def accepting(*ways: int) -> Acceptance:
    return Acceptance(ROUTES, frozenset(ways))


def admitted_nodes(cluster: SimulatedCluster) -> dict[int, set[str]]:
    made = plan(cluster.snapshot.copy(), NOW).decisions
    return {d.uid: {name for _, name in d.nodes} for d in made if isinstance(d, Admit)}


def wait_message(cluster: SimulatedCluster, uid: int) -> str:
    waiting = explaining.explain_wait(cluster.snapshot, JobUid(uid), NOW)
    assert waiting
    return waiting.message


def test_replicas_are_placed_only_on_nodes_that_accept_the_machine_type() -> None:
    cluster = SimulatedCluster([node("gpu", accepts=accepting(0)), node("all", accepts=accepting(0, 1, 2))])
    cluster.wait(gang(1, 4, machine="a2-highgpu-1g"), gang(2, 4, machine="n1-standard-4"))
    # The node that accepts the fewest machine types is filled first.
    assert admitted_nodes(cluster) == {1: {"gpu"}, 2: {"all"}}


def test_job_waits_if_only_nodes_for_other_machine_types_have_capacity() -> None:
    cluster = SimulatedCluster([node("gpu", accepts=accepting(0)), node("rest", accepts=accepting(2))])
    cluster.run(gang(1, 8, machine="a2-highgpu-1g"), "gpu")
    cluster.wait(gang(2, 4, machine="a2-highgpu-1g"))
    assert not admitted_nodes(cluster)
    assert wait_message(cluster, 2) == "needs 4 CPUs on one node, and at most 0 are free on one now"


@pytest.mark.parametrize(
    ("machine", "cpus", "gpus", "reason"),
    [
        ("a2-highgpu-1g", 12, 0, "needs 12 CPUs on one node; the largest node of partition gpu has 8"),
        ("n1-standard-4", 4, 1, f"needs a node of partition t4, where n1-standard-4 with {T4} runs"),
        ("n1-standard-4", 12, 0, "needs 12 CPUs on one node; the largest node has 4"),
    ],
)  # fmt: skip
def test_stock_out_reason_names_the_partition_for_the_machine_type(
    machine: str, cpus: int, gpus: int, reason: str
) -> None:
    cluster = SimulatedCluster([node("gpu", 8, accepts=accepting(0)), node("rest", 4, accepts=accepting(2))])
    cluster.wait(gang(1, cpus, gpus=gpus, machine=machine))
    (refused,) = plan(cluster.snapshot.copy(), NOW).decisions
    assert isinstance(refused, StockOut) and refused.reason.startswith(reason)
    assert wait_message(cluster, 1) == refused.reason


def test_displaced_replica_moves_only_to_nodes_for_the_same_machine_type() -> None:
    cluster = SimulatedCluster([node(name, accepts=accepting(way)) for name, way in (("a", 0), ("b", 2))])
    job = gang(1, 1, 2, machine="a2-highgpu-1g")
    cluster.run(job, "a")
    primary, worker = (replica for replica, _ in job.replicas)
    cluster.put(GangState(job, places=((primary, "a"),), unplaced=((worker, "a"),)))
    assert plan(cluster.snapshot.copy(), NOW).decisions == (Place(job.uid, worker, "a"),)


def test_job_waits_for_an_unreachable_cluster_instead_of_failing() -> None:
    """The sizes of the nodes are unknown while the cluster is unreachable, so the job is not rejected as too
    large."""
    silent = node("slurm", 0, 0, condition=NodeCondition.GONE)
    cluster = SimulatedCluster([replace(silent, unreached="no slurmctld")])
    cluster.wait(gang(1, 64))
    assert not plan(cluster.snapshot.copy(), NOW).decisions
    assert wait_message(cluster, 1) == "cluster slurm does not answer: no slurmctld"
    cluster.set_nodes([node("a", 64)])
    assert admitted_nodes(cluster) == {1: {"a"}}
