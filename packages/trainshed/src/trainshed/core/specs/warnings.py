"""Warnings about a valid job that may not do what its author expects (spec/submit#warnings)."""

import re
from collections.abc import Collection, Iterator

from trainshed.core.catalog.machines import RETIRED
from trainshed.core.cluster import PS_POOL, reducers_of
from trainshed.core.job import WorkerPool
from trainshed.core.runtime import CONTAINER
from trainshed.core.specs.worker_pool import default_disk

_TRAINS_ACROSS_REPLICAS = frozenset({"tensorflow", "pytorch", CONTAINER})
"""Runtime families whose framework uses workers, or may: what is in a container image is not known."""
_HAS_PARAMETER_SERVERS = frozenset({"tensorflow", CONTAINER})
USE_NONE = frozenset({"python", "scikit-learn", "tensorflow", "xgboost"})
"""The runtime families whose programs have no use for reducers. One that is not named here, such as a
container image of the user's, may be anything."""


def pool_warnings(pools: tuple[WorkerPool, ...]) -> tuple[str, ...]:
    """Return the warnings about the pools of a job."""
    texts: list[str] = []
    reducers = reducers_of(pools)
    for pool in pools:
        family = pool.program.runtime.family
        if pool.position == 1 and family not in _TRAINS_ACROSS_REPLICAS:
            texts.append(_idle("workers", family))
        if pool.position == 2 and pool is not reducers and family not in _HAS_PARAMETER_SERVERS:
            texts.append(_idle("parameter servers", family))
        if pool.position == 3 and pool.replica_count > 1:
            texts.append(
                f"The job has {pool.replica_count} evaluators; programs expect one, and the others "
                "repeat its work."
            )
    texts += _reducer_warnings(pools)
    if gpus := ", ".join(sorted(_devices(pools) & RETIRED)):
        texts.append(
            f"The public services have no {gpus} any more; the job is taken all the same, and {gpus} "
            "counts as a request for GPUs like any other."
        )
    texts += dict.fromkeys(
        f"The job asks for a boot disk of {pool.disk.size_gb} GB {pool.disk.type}: the files of its programs "
        "lie on the disk of the host, whatever that is. The size counts towards quotas, and who needs more "
        "is warned."
        for pool in pools
        if pool.disk != default_disk(pool.machine.type)
    )
    return tuple(texts)


def _reducer_warnings(pools: tuple[WorkerPool, ...]) -> tuple[str, ...]:
    """Return the warnings for a job with reducers; none if these are of use, or if that is not known."""
    if reducers_of(pools) is None:
        return ()
    workers = [pool for pool in pools if pool.position < PS_POOL]
    families = {pool.program.runtime.family for pool in workers}
    if families <= USE_NONE:
        return (
            f"Programs of {' and '.join(sorted(families))} have no use for reducers, so worker pool 2 will "
            "stay idle: take it out, or train with PyTorch's DistributedDataParallel.",
        )
    if (count := sum(pool.replica_count for pool in workers)) < 3:
        return (
            f"The job has reducers and only {count} worker{'s' * (count > 1)}, which become no faster by "
            "them; with three workers and more they do.",
        )
    return ()


def without_gpus(pools: tuple[WorkerPool, ...], there: Collection[str]) -> str | None:
    """Return the warning about a job that asks for GPUs while no node has any; None = there is no cause for
    it (spec/queue#capacity). `there`: the types of accelerators that nodes have."""
    devices = sorted(kind for kind in _devices(pools) if kind.startswith("NVIDIA"))
    if not devices or any(kind.startswith("NVIDIA") or not kind for kind in there):
        return None
    return (
        f"The job asks for GPUs ({', '.join(devices)}) and no node here has any: its programs run without "
        "them, and CUDA_VISIBLE_DEVICES is empty."
    )


_DIRECTORY = re.compile(r"/gcs/([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])")


def named_directories(pools: tuple[WorkerPool, ...]) -> Iterator[str]:
    """Yield the buckets that the programs of these pools are told to find as `/gcs/NAME`."""
    for pool in pools:
        program = pool.program
        for text in (*program.command, *program.args, *(value for _, value in program.env)):
            yield from _DIRECTORY.findall(text)


def not_mounted(bucket: str) -> str:
    """Return the warning about a bucket that a program will not find as a directory."""
    return (
        f"The job's programs are told of /gcs/{bucket}, and there is no such directory: the objects of "
        "this bucket lie in a store elsewhere, or it has versioning or holds new objects, which no "
        f"directory can. They are reached as gs://{bucket} alone."
    )


def _idle(role: str, family: str) -> str:
    return (
        f"The job has {role}, but its runtime ({family}) has no TensorFlow: they run the program, told "
        "their place by CLUSTER_SPEC and TF_CONFIG, and share no work unless the program does so itself."
    )


def _devices(pools: tuple[WorkerPool, ...]) -> set[str]:
    """Return the types of accelerators that these pools ask for."""
    return {pool.machine.accelerators.type for pool in pools if pool.machine.accelerators}
