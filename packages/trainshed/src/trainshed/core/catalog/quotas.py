"""Quotas: their metrics, and the amounts that a job uses (facts/limits#quotas, spec/queue#quotas).

Metric names have the form that operators type: `cpus_n1_e2`, `NVIDIA_TESLA_T4`, `pd_ssd_gb`. Preemptible jobs
have separate metrics.
"""

import functools
from collections.abc import Iterable

from trainshed.core.catalog.machines import accelerator_types, machine_types
from trainshed.core.job import Disk, Machine, Strategy
from trainshed.core.names import Api

JOBS = "jobs"
"""Metric: the maximum number of placed jobs in all regions together."""
QUEUED = "queued_jobs"
"""Metric: the maximum number of waiting jobs. At the maximum, new jobs are rejected."""
PRIORITY = "highest_priority"
"""Metric: the highest priority that a job may have."""
GLOBAL = "global"
"""The `region` of a quota whose metric has no region."""
GPU_HOURS = "gpu_hours_per_month"
CPU_HOURS = "cpu_hours_per_month"
COST = "cost_per_month"
BUDGETS = (COST, CPU_HOURS, GPU_HOURS)
"""Metrics of usage in a calendar month. After a project or user has reached the limit of such a metric, no
further jobs of that project or user start."""
HARD = "_hard"
"""Suffix of the metrics whose limits also stop running jobs."""
HARD_BUDGETS = tuple(f"{metric}{HARD}" for metric in BUDGETS)
SHARE = "share"
"""Metric: the weight of a project, or of a user in it, in the fair share. Default: 1."""
OF_ALL_REGIONS = (JOBS, QUEUED, PRIORITY, SHARE, *BUDGETS, *HARD_BUDGETS)
PREEMPTIBLE = "preemptible_"
_SHARED_FAMILIES = {"n1": "n1_e2", "e2": "n1_e2"}
"""N1 and E2 machines share one quota."""
_DISKS = ("hyperdisk_balanced_gb", "pd_ssd_gb", "pd_standard_gb")


def usage_of(strategy: Strategy, pools: Iterable[tuple[Machine, Disk, int]]) -> tuple[tuple[str, float], ...]:
    """Return the quota usage of a placed job with these pools: (metric, amount) for CPUs, accelerators and
    disk gigabytes, sorted by metric, without zeros. Spot and flex-start jobs have separate metrics for CPUs
    and accelerators, but not for disks."""
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
    """Return all metrics that a job may use, sorted."""
    plain = {_family(name) for name in machine_types()} | set(accelerator_types(Api.VERTEX))
    preemptible = {f"{PREEMPTIBLE}{metric}" for metric in plain}
    return tuple(sorted({*plain, *preemptible, *_DISKS, *OF_ALL_REGIONS}))


def _family(machine_type: str) -> str:
    family, dash, _ = machine_type.partition("-")
    # The older machine types of `ml`, whose names contain no dash, use the quota of N1 machines, because they
    # have the same sizes.
    return f"cpus_{_SHARED_FAMILIES.get(family, family) if dash else 'n1_e2'}"
