"""How many reducers a job needs, and what is said of one whose reducers are too few or of no use (SPEC §1.6, §7). Pure.

Owns the public rule of bandwidths. How fast an all-reduce can be with so many reducers is computed by
`trainshed_reduction.layout`, which also decides it where workers run.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trainshed.core.catalog.images import is_reduction_server
from trainshed.core.catalog.machines import egress_with, machine_types
from trainshed.core.reducer_support import can_only_idle, warning_for
from trainshed.core.specs.model import Machine, WorkerPool
from trainshed.core.specs.reducers import unknown_variables

POOL = 2
MACHINE = "n1-highcpu-16"
"""The machine type that is recommended for reducers (facts, reductionServer)."""
IMAGE = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
RECOMMENDED_VCPUS = 16
"""A reducer's machine should have at least as many."""
_SINGLE = (
    "The job has reducers and only one worker: a single worker has nothing to reduce, and worker pool 2 will stay idle. "
    "Take it out, or give the job more workers in worker pool 1."
)
_PAIR = (
    "The job has reducers and two workers: two send each other no more than they would send to reducers, so it becomes no "
    "faster by them. With three workers and more it does."
)


@dataclass(frozen=True, slots=True)
class Fleet:
    """`count` machines of one type. `gbps`: the bandwidth of each."""

    count: int
    machine: str
    gbps: float

    @property
    def total(self) -> float:
        """Gbit/s of all together."""
        return self.count * self.gbps

    def __str__(self) -> str:
        return f"{self.count} × {self.machine}"


def bandwidth(machine: Machine) -> float | None:
    """Gbit/s that a machine sends at most, with its accelerators; None where the facts do not say."""
    found = machine_types().get(machine.type)
    if found is None:
        return None
    devices = machine.accelerators
    return egress_with(found, devices.type, devices.count) if devices else found.egress_gbps


def enough(workers_gbps: float, reducer_gbps: float) -> int:
    """How many reducers of `reducer_gbps` each send together what primary and workers do, `workers_gbps` in all."""
    return max(1, math.ceil(round(workers_gbps / reducer_gbps, 9)))


def reducers_of(pools: Iterable[WorkerPool]) -> WorkerPool | None:
    """The pool of reducers, if there is one."""
    for pool in pools:
        if pool.position == POOL and is_reduction_server(pool.program.image_uri):
            return pool
    return None


def reducer_warnings(pools: tuple[WorkerPool, ...]) -> tuple[str, ...]:
    """What is said of a job with reducers; nothing where they are of use and fast enough, or nobody knows."""
    reducers = reducers_of(pools)
    if reducers is None:
        return ()
    workers = [pool for pool in pools if pool.position < POOL]
    count = sum(pool.replica_count for pool in workers)
    if count == 1:
        return (_SINGLE,)
    unknown = unknown_variables(pool for pool in pools if pool.position <= POOL)
    families = frozenset(pool.program.runtime.family for pool in workers)
    advice = _PAIR if count == 2 else _too_slow(_fleets(workers), _fleets([reducers]))
    if can_only_idle(families):
        advice = ""
    return tuple(filter(None, (warning_for(families), advice, *unknown)))


def _fleets(pools: list[WorkerPool]) -> list[Fleet] | None:
    """None if the bandwidth of one of them is not known."""
    found: list[Fleet] = []
    for pool in pools:
        gbps = bandwidth(pool.machine)
        if gbps is None:
            return None
        found.append(Fleet(pool.replica_count, pool.machine.type, gbps))
    return found


def _too_slow(workers: list[Fleet] | None, reducers: list[Fleet] | None) -> str:
    if workers is None or reducers is None:
        return ""
    (pool,) = reducers
    total = sum(fleet.total for fleet in workers)
    needed = enough(total, pool.gbps)
    if pool.count >= needed:
        return ""
    return (
        f"The reducers' bandwidth is too small: {pool} have {pool.total:g} Gbps together, primary and workers "
        f"({_listed(workers)}) {total:g} Gbps. {needed} reducers of that machine type would be enough; with fewer, "
        "PyTorch's workers reduce as well (hybrid)."
    )


def _listed(fleets: list[Fleet]) -> str:
    """Pools of one machine type as one."""
    counts: dict[str, int] = {}
    for fleet in fleets:
        counts[fleet.machine] = counts.get(fleet.machine, 0) + fleet.count
    return ", ".join(f"{count} × {machine}" for machine, count in counts.items())
