"""Quotas: the metrics that a job uses, and the amounts (facts/limits#quotas, spec/queue#quotas).

Names are in the form that operators type: `cpus_n1_e2`, `NVIDIA_TESLA_T4`, `pd_ssd_gb`.
Preemptible jobs have metrics of their own.
"""

import functools
from collections.abc import Iterable

from trainshed.core.catalog.machines import accelerator_types, machine_types
from trainshed.core.job import Disk, Machine, Strategy
from trainshed.core.names import Api

JOBS = "jobs"
"""The metric of how many jobs hold their places at once, in all regions together."""
QUEUED = "queued_jobs"
"""The metric of how many jobs may wait: with so many, none can be submitted."""
PRIORITY = "highest_priority"
"""The metric of the priority that a job may have at most."""
GLOBAL = "global"
"""In place of a region: metrics that have none."""
GPU_HOURS = "gpu_hours_per_month"
CPU_HOURS = "cpu_hours_per_month"
COST = "cost_per_month"
BUDGETS = (COST, CPU_HOURS, GPU_HOURS)
"""Metrics of use in a calendar month. When one is used up, no new jobs start."""
HARD = "_hard"
"""Suffix of the metrics whose limits also stop running jobs."""
HARD_BUDGETS = tuple(f"{metric}{HARD}" for metric in BUDGETS)
SHARE = "share"
"""How much of the fair share a project, or a person in it, is due; without it 1."""
OF_ALL_REGIONS = (JOBS, QUEUED, PRIORITY, SHARE, *BUDGETS, *HARD_BUDGETS)
PREEMPTIBLE = "preemptible_"
_SHARED_FAMILIES = {"n1": "n1_e2", "e2": "n1_e2"}
"""N1 and E2 machines use one quota together."""
_DISKS = ("hyperdisk_balanced_gb", "pd_ssd_gb", "pd_standard_gb")


def usage_of(
    strategy: Strategy, pools: Iterable[tuple[Machine, Disk, int]]
) -> tuple[tuple[str, float], ...]:
    """Return (metric, amount) that a job with these numbers of replicas on these machines and disks takes
    while it is placed, sorted by metric, without zeros.

    CPUs, devices and gigabytes. Disks count in full for spot and flex-start jobs too.
    """
    sums: dict[str, float] = {}
    prefix = PREEMPTIBLE if strategy is not Strategy.STANDARD else ""
    for machine, disk, count in pools:
        demands = {
            f"{prefix}{_family(machine.type)}": machine.vcpus,
            f"{disk.type.replace('-', '_')}_gb": float(disk.size_gb),
        }
        if device := machine.accelerators:
            demands[f"{prefix}{device.type}"] = float(device.count)
        for metric, amount in demands.items():
            sums[metric] = sums.get(metric, 0) + amount * count
    return tuple((metric, value) for metric, value in sorted(sums.items()) if value)


@functools.cache
def metrics() -> tuple[str, ...]:
    """Return every metric that a job may use, sorted."""
    plain = {_family(name) for name in machine_types()} | set(accelerator_types(Api.VERTEX))
    preemptible = {f"{PREEMPTIBLE}{metric}" for metric in plain}
    return tuple(sorted({*plain, *preemptible, *_DISKS, *OF_ALL_REGIONS}))


def _family(machine_type: str) -> str:
    family, dash, _ = machine_type.partition("-")
    # The older types of `ml` are sizes of N1.
    return f"cpus_{_SHARED_FAMILIES.get(family, family) if dash else 'n1_e2'}"
