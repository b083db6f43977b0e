"""Quotas: usage of a job and public limits (facts/limits#quotas), and the gang request of a job."""

from msgspec.structs import replace

from tests.unit.jobs import MACHINE, job
from trainshed.core.capacity import MachineWanted
from trainshed.core.catalog.quotas import metrics, usage_of
from trainshed.core.job import Accelerators, Disk, Machine, Scheduling, Strategy
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import ReplicaId
from trainshed.scheduler.model import Demand, Policy, gang
from trainshed.store.codec import decode_job, encode_job

GPU_MACHINE = Machine("n1-standard-8", 8, 30, 24, Accelerators("NVIDIA_TESLA_T4", 2))
A3 = Machine("a3-ultragpu-8g", 224, 1, 1, Accelerators("NVIDIA_H200_141GB", 8))


def test_job_usage_counts_cpus_accelerators_and_disks() -> None:
    """spec/queue#order: CPUs, each accelerator kind, disk."""
    used = usage_of(Strategy.STANDARD, [(MACHINE, Disk(), 1), (GPU_MACHINE, Disk("pd-standard", 200), 3)])
    assert used == (("NVIDIA_TESLA_T4", 6), ("cpus_n1_e2", 28), ("pd_ssd_gb", 100), ("pd_standard_gb", 600))
    e2 = Machine("e2-standard-4", 4, 16, 16)
    assert usage_of(Strategy.STANDARD, [(e2, Disk("hyperdisk-balanced", 100), 1)]) == (
        ("cpus_n1_e2", 4),
        ("hyperdisk_balanced_gb", 100),
    )


def test_every_usage_metric_is_listed() -> None:
    names = metrics()
    assert list(names) == sorted(set(names))
    assert {"cpus_n1_e2", "pd_ssd_gb", "preemptible_NVIDIA_L4"} <= set(names)
    legacy = Machine("complex_model_l_gpu", 32, 1, 1, Accelerators("NVIDIA_TESLA_K80", 8))
    for strategy in Strategy:
        used = usage_of(strategy, [(machine, Disk(), 1) for machine in (GPU_MACHINE, A3, legacy)])
        assert {metric for metric, _ in used} <= set(names)


def test_capacity_request_of_a_job_contains_its_replicas_machines_and_priority() -> None:
    """spec/queue#spot: only SPOT jobs are preempted by on-demand jobs."""
    made = job(1, 2, scheduling=Scheduling(priority=3, timeout=77, strategy=Strategy.SPOT))
    asked_gang = gang(made, Policy())
    assert asked_gang.replicas == tuple(
        (replica, Demand(4, 15 * 2**30, machine=MachineWanted("n1-standard-4")))
        for replica in (ReplicaId(0, 0), ReplicaId(1, 0), ReplicaId(1, 1))
    )
    assert (asked_gang.uid, asked_gang.name) == (made.uid, str(made.name))
    assert (asked_gang.project_id, asked_gang.region, asked_gang.created) == (
        "demo",
        "us-central1",
        made.created,
    )
    assert (asked_gang.priority, asked_gang.spot) == (3, True)
    assert asked_gang.quota == (("pd_ssd_gb", 300), ("preemptible_cpus_n1_e2", 12))
    flex = Scheduling(strategy=Strategy.FLEX_START)
    assert not gang(replace(made, spec=replace(made.spec, scheduling=flex)), Policy()).spot
    pool = replace(made.spec.pools[0], machine=GPU_MACHINE)
    first = gang(replace(made, spec=replace(made.spec, pools=(pool,))), Policy()).replicas[0]
    wanted = Demand(8, 30, 2, MachineWanted("n1-standard-8", "NVIDIA_TESLA_T4"))
    assert first == (ReplicaId(0, 0), wanted)


def test_capacity_requests_of_equal_jobs_share_tuples_in_memory() -> None:
    """Most of 100,000 waiting jobs have one of a few shapes. Shared tuples save memory."""
    first, second = job(1, 2), decode_job(encode_job(job(1, 2)), b"[]", 0)
    assert isinstance(second, Job) and second.spec.pools is not first.spec.pools
    assert gang(first, Policy()).replicas is gang(second, Policy()).replicas
    assert gang(first, Policy()).quota is gang(second, Policy()).quota
    assert gang(first, Policy()).replicas is not gang(replace(second, memory_factor=2.0), Policy()).replicas


def test_replica_memory_demand_includes_engine_overhead() -> None:
    """spec/machines#memory: the demand is the memory of the machine type, or the configured cap if it is
    smaller. It is at least the memory limit plus the engine's overhead."""
    gib, mib = 1 << 30, 1 << 20
    small = Machine("small", 1, 1024 * mib, 900 * mib)
    made = job(1)
    pools = (replace(made.spec.pools[0], machine=small),)
    made = replace(made, spec=replace(made.spec, pools=pools))

    def memory_demand(policy: Policy, factor: float = 1.0) -> int:
        return gang(replace(made, memory_factor=factor), policy).replicas[0][1].memory_bytes

    assert memory_demand(Policy()) == 1024 * mib
    assert memory_demand(Policy(), 2.0) == 2 * gib
    assert memory_demand(Policy(memory_cap=400 * mib)) == 400 * mib
    assert memory_demand(Policy(memory_cap=400 * mib), 2.0) == 400 * mib
    assert memory_demand(Policy(memory_cap=4 * gib)) == 1024 * mib
    assert memory_demand(Policy(memory_overhead=256 * mib)) == 1156 * mib
    assert memory_demand(Policy(memory_cap=400 * mib, memory_overhead=256 * mib)) == 656 * mib
