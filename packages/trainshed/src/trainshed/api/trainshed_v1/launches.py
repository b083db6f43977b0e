"""How a replica was started: what the job determines, and what its shim recorded when it started
(spec/program#launches)."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, cast

from trainshed.api.calls.timestamps import text_micros
from trainshed.api.resources.jobs import find_job
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.drills import read_replica
from trainshed.api.trainshed_v1.usage import read_attempt
from trainshed.core.catalog.machines import GIB
from trainshed.core.environment import service_account
from trainshed.core.job import Program, WorkerPool
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import ReplicaId, log_task_name
from trainshed.core.requests import Faults
from trainshed.core.runtime import CONTAINER
from trainshed.store.logs.reader import Launch
from trainshed.wire.trainshed_v1 import launches as records

_CLUSTER: Final = "CLUSTER_SPEC"
_PARTS: Final = ("cluster", "task")


async def launch(call: JsonCall) -> records.Launch:
    """`GET /trainshed/v1/jobs/{job}/launch[?replica=R][&attempt=N]`: return how a replica was started; by
    default the primary replica in the newest attempt."""
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
    now = {current.id: current for current in job.replicas} if attempt == job.attempt else {}
    is_container = runtime.family == CONTAINER
    return records.Launch(
        name=str(job.name),
        attempt=attempt,
        replica=str(replica),
        task=log_task_name(job.name.api, replica),
        node=now[replica].node if replica in now else "",
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
        cluster_spec=_cluster(values.pop(_CLUSTER, "")),
        values=values,
        hostname=started.hostname or "",
        address=started.address,
        isolation=started.level,
        user=started.user,
        timeout_seconds=job.spec.scheduling.timeout / 1e9,
        service_account=service_account(job.name.project_id, job.spec),
    )


def _digest(program: Program) -> str:
    contents = [
        digest or uri
        for uri, digest in zip(
            program.package_uris, program.package_digests or program.package_uris, strict=True
        )
    ]
    what = (program.image_uri, program.module, *program.command, *contents)
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


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
    """Return the cluster specification without the job, which is shown as it was submitted; None if it was
    too long to be kept."""
    try:
        spec: Any = json.loads(text) if text else None
    except ValueError:
        return None
    if not isinstance(spec, dict):
        return None
    members = cast(dict[str, Any], spec)
    return {name: members[name] for name in _PARTS if name in members}
