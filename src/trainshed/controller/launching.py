"""From a stored job and its slots to launch plans: pure, so that a plan can be printed and compared."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainshed.core.cluster import Endpoint, hostname
from trainshed.core.environment import Gang, arguments, environment
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.lifecycle.states import ReplicaState
from trainshed.core.names import JobUid
from trainshed.core.runtime import RuntimeChoice
from trainshed.engines.port import Slot, SlotRequest
from trainshed.runtimes.port import PreparedRuntime

Prepared = Mapping[tuple[RuntimeChoice, tuple[str, ...]], PreparedRuntime]
"""The environments of an attempt, by runtime and packages."""


@dataclass(frozen=True, slots=True)
class Launching:
    """What every plan of this service shares. `gcs_root`: the directory of the buckets, shown as /gcs.
    `memory_cap`: bytes that no replica gets more than, whatever its machine has; 0 = no cap."""

    gcs_root: str = ""
    memory_cap: int = 0

    def memory_limit(self, promised: int) -> int:
        """What a replica gets of the bytes that its machine promises (0 = no limit)."""
        limits = [limit for limit in (promised, self.memory_cap) if limit]
        return min(limits, default=0)


def slot_requests(job: Job) -> tuple[SlotRequest, ...]:
    """One slot per replica of the current attempt."""
    return tuple(
        SlotRequest(replica.id, hostname(job.uid, job.spec, replica.id), replica.node)
        for replica in job.replicas
    )


def launch_plans(
    job: Job, slots: Sequence[Slot], prepared: Prepared, launching: Launching
) -> tuple[LaunchPlan, ...]:
    """A plan for every replica that has not been seen running yet."""
    by_replica = {slot.replica: slot for slot in slots}
    endpoints = {slot.replica: Endpoint(slot.host, slot.port) for slot in slots}
    gang = Gang(job.name, job.spec, endpoints, master_port(job.uid, job.attempt))
    hosts = tuple((slot.hostname, slot.address) for slot in slots)
    return tuple(
        _plan(
            job,
            replica,
            by_replica[replica.id],
            gang=gang,
            hosts=hosts,
            prepared=prepared,
            launching=launching,
        )
        for replica in job.replicas
        if replica.state is ReplicaState.WAITING
    )


def master_port(uid: JobUid, attempt: int) -> int:
    """The port of PyTorch's rendezvous: below the ephemeral ports, and the job's own, because the store
    behind it binds the wildcard address, which jobs on one machine share (docs/adr/0005)."""
    digest = hashlib.sha256(b"rendezvous:%d:%d" % (uid, attempt)).digest()
    return 10_000 + int.from_bytes(digest[:4], "big") % 20_000


def banner(job: Job, replica: Replica) -> tuple[str, ...]:
    """What the job's log begins with: substitutions and warnings, once, in the primary's log (SPEC §4)."""
    if not replica.id.is_primary:
        return ()
    notices = (notice for pool in job.spec.pools for notice in pool.program.runtime.notices)
    return tuple(dict.fromkeys((*notices, *job.spec.warnings)))


def _plan(
    job: Job,
    replica: Replica,
    slot: Slot,
    *,
    gang: Gang,
    hosts: tuple[tuple[str, str], ...],
    prepared: Prepared,
    launching: Launching,
) -> LaunchPlan:
    pool = job.spec.pool(replica.id.pool)
    runtime = prepared[pool.program.runtime, pool.program.package_uris]
    environ = environment(gang, replica.id)
    return LaunchPlan(
        job_uid=job.uid,
        attempt=job.attempt,
        replica=replica.id,
        incarnation=replica.incarnation,
        argv=arguments(job.spec, replica.id, dict(environ)),
        environ=environ,
        hostname=slot.hostname,
        address=slot.address,
        hosts=hosts,
        python_template=runtime.template,
        memory_limit=launching.memory_limit(pool.machine.memory_limit_bytes),
        cpu_weight=max(1, round(pool.machine.vcpus * 100)),
        banner=banner(job, replica),
        gcs_root=launching.gcs_root,
        path=runtime.path,
        read_only=runtime.read_only,
    )
