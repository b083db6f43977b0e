"""A job's replicas: their usage, and how each replica was started. The sources are the job's specification
and the record of the shim (spec/program#launches)."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, cast

from msgspec.structs import replace

from trainshed.api.resources.jobs import find_job
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.drills import read_replica
from trainshed.core.catalog.machines import GIB
from trainshed.core.environment import service_account
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.job import Program, WorkerPool
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import ReplicaId, log_task_name
from trainshed.core.requests import Faults
from trainshed.core.runtime import CONTAINER
from trainshed.core.units import text_micros
from trainshed.store.logs.reader import Launch
from trainshed.store.logs.usage import GpuLook, Life, ReplicaUsage
from trainshed.wire.trainshed_v1 import replicas as records

_DEFAULT_POINTS: Final = 60
_MAX_POINTS: Final = 2000


async def usage(call: JsonCall) -> records.Usage:
    """`GET /trainshed/v1/jobs/{job}/usage[?attempt=N][&points=N]`: return the usage in an attempt, by default
    in the newest. `points`: number of points per replica. Default: 60. Maximum: 2,000. 0 returns no points.
    """
    job, _ = await find_job(call.services.reader, call.target)
    attempt = read_attempt(call, job)
    points = call.number("points", _DEFAULT_POINTS)
    if points > _MAX_POINTS:
        raise InvalidRequest(
            (Violation("points", f"{points} points exceed the limit. Use 0 to {_MAX_POINTS}."),)
        )
    return await measured_usage(call, job, attempt, points)


async def measured_usage(
    call: JsonCall, job: Job, attempt: int | None = None, points: int = 0
) -> records.Usage:
    """Return the usage of a job's replicas. `attempt`: None = the newest attempt."""
    attempt = attempt or job.attempt
    usages = await call.services.logs.usage(job.uid, attempt)
    by_replica = {entry.replica: entry for entry in usages}
    current = job.replicas if attempt == job.attempt else ()
    states = {entry.id: entry.state.value for entry in current}
    until = job.ended or call.services.now()
    if job.freed and not job.placed and not job.ended:
        job, until = replace(job, began=job.began_before), job.freed
    uses = [use.within(0, until) for use in call.services.capacity.uses(job, until)]
    return records.Usage(
        cpu_hours=sum(use.cpu_hours for use in uses),
        gpu_hours=sum(use.gpu_hours for use in uses),
        cost=sum(map(call.services.settings.prices.cost, uses)),
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
    """Return the number of the attempt in the query. The default is the newest attempt. Raises
    InvalidRequest."""
    attempt = call.number("attempt", None) or job.attempt
    if attempt > job.attempt:
        text = f"Attempt {attempt} does not exist. The newest attempt is {job.attempt}."
        raise InvalidRequest((Violation("attempt", text),))
    return attempt


def _replica(  # noqa: PLR0917  all inputs of a usage record
    job: Job, pool: WorkerPool, replica: ReplicaId, state: str, usage: ReplicaUsage | None, points: int
) -> records.ReplicaUsage:
    life = usage.lives[-1] if usage else Life(0, 0)
    last = life.looks[-1] if life.looks else None
    all_points = [point for lived in usage.lives for point in lived.points()] if usage else []
    last_point = life.points()[-1:]
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
        cpus=round(last_point[0].cpus, 3) if last_point else 0.0,
        mean_cpus=round(usage.mean_cpus, 3) if usage else 0.0,
        most_cpus=round(usage.most_cpus, 3) if usage else 0.0,
        memory_bytes=last.memory if last else 0,
        peak_memory_bytes=usage.peak if usage else 0,
        disk_bytes=last.disk if last else 0,
        gpus=_gpus(pool, life, last_point[0].gpus if last_point else ()),
        points=tuple(
            records.UsagePoint(
                at=text_micros(point.at),
                cpus=round(point.cpus, 3),
                memory_bytes=point.memory,
                disk_bytes=point.disk,
                gpus=tuple(_round(busy) for busy in point.gpus),
            )
            for point in (all_points[-points:] if points else ())
        ),
    )


def _gpus(pool: WorkerPool, life: Life, last_point: tuple[float | None, ...]) -> tuple[records.GpuUsage, ...]:
    """Return the usage of all GPUs of a replica. GPUs without measurements are included."""
    devices = pool.machine.accelerators
    looks = life.looks[-1].gpus if life.looks else ()
    nothing = GpuLook(None, None, None, None)
    return tuple(
        records.GpuUsage(
            uuid=uuid,
            type=devices.type if devices else "",
            busy=_round(last_point[number] if number < len(last_point) else None),
            mean_busy=_round(_mean_busy(look, life)),
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


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


_CLUSTER_VARIABLE: Final = "CLUSTER_SPEC"
_CLUSTER_MEMBERS: Final = ("cluster", "task")


async def launch(call: JsonCall) -> records.Launch:
    """`GET /trainshed/v1/jobs/{job}/launch[?replica=R][&attempt=N]`: return how a replica was started.
    Default: the primary replica in the newest attempt."""
    job, _ = await find_job(call.services.reader, call.target)
    faults = Faults()
    replica = read_replica(call.parameter("replica"), job, faults)
    faults.refuse()
    attempt = read_attempt(call, job)
    launched = await call.services.logs.launches(job.uid, attempt, replica)
    return _view(job, attempt, replica, launched[-1] if launched else Launch())


def _view(job: Job, attempt: int, replica: ReplicaId, started: Launch) -> records.Launch:
    pool = job.spec.pool(replica.pool)
    program, values = pool.program, dict(started.values)
    runtime = program.runtime
    nodes = {current.id: current.node for current in job.replicas} if attempt == job.attempt else {}
    is_container = runtime.family == CONTAINER
    return records.Launch(
        name=str(job.name),
        attempt=attempt,
        replica=str(replica),
        task=log_task_name(job.name.api, replica),
        node=nodes.get(replica) or "",
        incarnation=started.incarnation,
        start_time=text_micros(started.at),
        runtime=records.Runtime(
            family=runtime.family,
            version=runtime.version,
            python_version="" if is_container else runtime.python_version,
            image=runtime.image or (program.image_uri if is_container else ""),
            notices=runtime.notices,
        ),
        machine=_machine(pool, started),
        packages=program.package_uris,
        code=_digest(program),
        command=started.argv,
        directory=started.directory or "",
        variables=started.names,
        cluster_spec=_cluster(values.pop(_CLUSTER_VARIABLE, "")),
        values=values,
        hostname=started.hostname or "",
        address=started.address,
        isolation=started.level,
        # A shim of version 0.2.0 has stored -1 in place of the user.
        user=None if started.user == -1 else started.user,
        timeout_seconds=job.spec.scheduling.timeout / 1e9,
        service_account=service_account(job.name.project_id, job.spec),
    )


def _digest(program: Program) -> str:
    digests = program.package_digests or program.package_uris
    contents = [digest or uri for uri, digest in zip(program.package_uris, digests, strict=True)]
    identity = (program.image_uri, program.module, *program.command, *contents)
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def _machine(pool: WorkerPool, started: Launch) -> records.LaunchMachine:
    machine = pool.machine
    devices = machine.accelerators
    return records.LaunchMachine(
        type=machine.type,
        vcpus=machine.vcpus,
        memory_bytes=machine.memory_bytes,
        memory_limit_bytes=started.memory or 0,
        disk_bytes=pool.disk.size_gb * GIB,
        process_limit=started.processes or 0,
        accelerator=devices.type if devices else "",
        accelerator_count=devices.count if devices else 0,
        gpus=started.gpus,
    )


def _cluster(text: str) -> Mapping[str, Any] | None:
    """Return the cluster specification without the job, because other fields contain the job as it was
    submitted. Return None if the specification was too long to be stored."""
    try:
        spec: Any = json.loads(text) if text else None
    except ValueError:
        return None
    if not isinstance(spec, dict):
        return None
    members = cast(dict[str, Any], spec)
    return {name: members[name] for name in _CLUSTER_MEMBERS if name in members}
