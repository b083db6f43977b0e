"""From a stored job to the gang that the scheduler knows."""

from trainshed.core.catalog import quotas
from trainshed.core.job.spec import Strategy, WorkerPool
from trainshed.core.lifecycle.records import Job
from trainshed.scheduler.model import Demand, Gang


def gang(job: Job) -> Gang:
    """The job's gang, the same for the whole life of the job, but for the memory that the out-of-memory escalation
    gives it.

    Only SPOT work is preemptible: FLEX_START waits longer for its room, and keeps it (facts §2.6).
    `longest` is the limit that counts from the first RUNNING, in steps, so that jobs with slightly different limits have
    one shape; what comes before that is not in it.
    """
    spec = job.spec
    return Gang(
        uid=job.uid,
        name=str(job.name),
        project_id=job.name.project_id,
        region=spec.region,
        priority=spec.scheduling.priority,
        created=job.created,
        replicas=tuple(
            (replica, demand)
            for pool, demand in ((pool, _demand(pool, job.memory_factor)) for pool in spec.pools)
            for replica in pool.replicas()
        ),
        quota=quotas.usage(spec),
        spot=spec.scheduling.strategy is Strategy.SPOT,
        longest=_in_steps(spec.scheduling.timeout),
    )


def _demand(pool: WorkerPool, memory_factor: float) -> Demand:
    machine = pool.machine
    devices = machine.accelerators
    return Demand(
        vcpus=machine.vcpus,
        memory_bytes=round(machine.memory_bytes * memory_factor),
        accelerator=devices.type if devices else "",
        accelerators=devices.count if devices else 0,
    )


def _in_steps(duration: int) -> int:
    """Rounded up by an eighth at most."""
    unit = 1 << max(duration.bit_length() - 4, 0)
    return -(-duration // unit) * unit
