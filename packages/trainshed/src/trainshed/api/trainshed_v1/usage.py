"""The resource usage of a job's replicas."""

from typing import Final

from msgspec.structs import replace

from trainshed.api.calls.timestamps import text_micros
from trainshed.api.resources.jobs import find_job
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.job import WorkerPool
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import ReplicaId, log_task_name
from trainshed.core.usage import uses
from trainshed.store.logs.usage import GpuLook, Life, ReplicaUsage
from trainshed.wire.trainshed_v1 import usage as records

_POINTS: Final = 60
_MOST_POINTS: Final = 2000


async def usage(call: JsonCall) -> records.Usage:
    """`GET /trainshed/v1/jobs/{job}/usage[?attempt=N][&points=N]`: return the usage in the newest attempt, or
    in the one that is named. `points`: how many points to return per replica (60 by default, 0 for none, at
    most 2,000)."""
    job, _ = await find_job(call.services.reader, call.target)
    attempt = read_attempt(call, job)
    points = call.number("points") if call.parameter("points") else _POINTS
    if points > _MOST_POINTS:
        raise InvalidRequest((Violation("points", f"At most {_MOST_POINTS} are given."),))
    return await usage_of(call, job, attempt, points)


async def usage_of(
    call: JsonCall, job: Job, attempt: int | None = None, points: int = 0
) -> records.Usage:
    """Return what a job's replicas use. `attempt`: None = the newest."""
    attempt = attempt or job.attempt
    by_replica = {
        entry.replica: entry for entry in await call.services.logs.usage(job.uid, attempt)
    }
    states = (
        {entry.id: entry.state.value for entry in job.replicas} if attempt == job.attempt else {}
    )
    until = job.ended or call.services.now()
    held = [use.within(0, until) for use in uses(replace(job, placed=job.started), until)]
    return records.Usage(
        cpu_hours=sum(use.cpu_hours for use in held),
        gpu_hours=sum(use.gpu_hours for use in held),
        cost=sum(map(call.services.settings.prices.cost, held)),
        name=str(job.name),
        state=job.state.value,
        attempt=attempt,
        replicas=tuple(
            _replica(job, pool, replica, states.get(replica, ""), by_replica.get(replica), points)
            for pool in job.spec.pools
            for replica in pool.replicas()
        ),
    )


def read_attempt(call: JsonCall, job: Job) -> int:
    """Return the attempt that the call names, by default the newest. Raises InvalidRequest."""
    attempt = call.number("attempt") or job.attempt
    if attempt > job.attempt:
        text = f"The job has had {job.attempt} attempts, not {attempt}."
        raise InvalidRequest((Violation("attempt", text),))
    return attempt


def _replica(  # noqa: PLR0917  all that a replica's usage is made of
    job: Job,
    pool: WorkerPool,
    replica: ReplicaId,
    state: str,
    usage: ReplicaUsage | None,
    points: int,
) -> records.ReplicaUsage:
    life = usage.lives[-1] if usage else Life(0, 0)
    last = life.looks[-1] if life.looks else None
    every = [point for lived in usage.lives for point in lived.points()] if usage else []
    lately = life.points()[-1:]
    return records.ReplicaUsage(
        id=str(replica),
        task=log_task_name(job.name.api, replica),
        state=state,
        machine_type=pool.machine.type,
        vcpus=pool.machine.vcpus,
        limit_bytes=life.limit,
        incarnation=life.incarnation,
        start_time=text_micros(life.started),
        sample_time=text_micros(last.at) if last else "",
        over=life.over,
        processes=last.processes if last else 0,
        cpus=round(lately[0].cpus, 3) if lately else 0.0,
        mean_cpus=round(usage.mean_cpus, 3) if usage else 0.0,
        most_cpus=round(usage.most_cpus, 3) if usage else 0.0,
        memory_bytes=last.memory if last else 0,
        peak_memory_bytes=usage.peak if usage else 0,
        disk_bytes=last.disk if last else 0,
        gpus=_gpus(pool, life, lately[0].gpus if lately else ()),
        points=tuple(
            records.UsagePoint(
                at=text_micros(point.at),
                cpus=round(point.cpus, 3),
                memory_bytes=point.memory,
                disk_bytes=point.disk,
                gpus=tuple(_rounded(busy) for busy in point.gpus),
            )
            for point in (every[-points:] if points else ())
        ),
    )


def _gpus(
    pool: WorkerPool, life: Life, lately: tuple[float | None, ...]
) -> tuple[records.GpuUsage, ...]:
    """Return all GPUs of the replica, including those that nothing is known of."""
    devices = pool.machine.accelerators
    looks = life.looks[-1].gpus if life.looks else ()
    nothing = GpuLook(None, None, None, None)
    return tuple(
        records.GpuUsage(
            uuid=uuid,
            type=devices.type if devices else "",
            busy=_rounded(lately[number] if number < len(lately) else None),
            mean_busy=_rounded(_mean_busy(look, life)),
            memory_bytes=look.used,
            peak_memory_bytes=look.peak,
            temperature=look.degrees,
        )
        for number, uuid in enumerate(life.gpus)
        for look in (looks[number] if number < len(looks) else nothing,)
    )


def _mean_busy(look: GpuLook, life: Life) -> float | None:
    if look.busy is None or not life.seconds:
        return None
    return min(1.0, look.busy / life.seconds)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
