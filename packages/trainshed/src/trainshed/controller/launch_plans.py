"""Creates launch plans from a stored job and the slots of its replicas (positions on nodes). Pure, so that
plans can be printed and compared."""

import hashlib
from collections.abc import Mapping, Sequence

from msgspec import Struct

from trainshed.core import warm_start
from trainshed.core.capacity import MachineWanted
from trainshed.core.catalog.machines import GIB
from trainshed.core.cluster import PS_POOL, Endpoint, hostname, reducers, takes_part_in_reduction
from trainshed.core.environment import PlacedAttempt, arguments, environment, service_account
from trainshed.core.job import JobSpec, Strategy
from trainshed.core.launch import (
    REDUCTION_PACKAGES,
    STALL_LABEL,
    WARM_LABEL,
    Account,
    ImageRoot,
    LaunchPlan,
    Limits,
    ReductionPart,
    Software,
    WarmStart,
)
from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.packages import JobPackage
from trainshed.core.runtime import Image, RuntimeChoice
from trainshed.core.units import Bytes
from trainshed.engines.port import Slot, SlotRequest
from trainshed.runtimes.port import PackageFailed, PreparedRuntime
from trainshed_reduction.variables import MODE

Prepared = Mapping[tuple[RuntimeChoice, tuple[JobPackage, ...]], PreparedRuntime]
"""The environments of an attempt, by runtime and packages."""


class LaunchDefaults(Struct, frozen=True):
    """Settings that all launch plans of this service share."""

    #: Maximum memory of any replica in bytes, independent of its machine. None without a maximum.
    memory_cap: Bytes | None = None
    #: The programs that start warm by default.
    warm_starts: warm_start.WarmStarts = "trials"

    def memory_limit(self, promised: int, factor: float = 1.0) -> int | None:
        """Return a replica's memory limit in bytes. `promised`: the memory of its machine type, 0 for no
        limit. `factor`: the increase by out-of-memory retries."""
        limits = [limit for limit in (int(promised * factor), self.memory_cap) if limit]
        return min(limits, default=None)


def slot_requests(job: Job, launching: LaunchDefaults) -> tuple[SlotRequest, ...]:
    """Return a request for one slot (a position on a node) per replica of the current attempt."""
    requests: list[SlotRequest] = []
    for replica in job.replicas:
        pool = job.spec.pool(replica.id.pool)
        machine, accelerators = pool.machine, pool.machine.accelerators
        requests.append(
            SlotRequest(
                replica=replica.id,
                hostname=hostname(job.uid, job.spec, replica.id),
                # If a replica has lost its node and has no new node yet, specify its former node.
                node=replica.node or replica.avoid or "",
                accelerators=accelerators.count if accelerators else 0,
                vcpus=machine.vcpus,
                memory_bytes=launching.memory_limit(machine.memory_limit_bytes, job.memory_factor) or 0,
                machine=MachineWanted(machine.type, accelerators.type if accelerators else None),
                image=pool.program.runtime.image or None,
                project=job.name.project_id,
                is_placed=bool(replica.node),
                seconds=job.spec.scheduling.timeout // 10**9,
            )
        )
    return tuple(requests)


def launch_plans(
    job: Job,
    slots: Sequence[Slot],
    prepared: Prepared,
    launching: LaunchDefaults,
    waiting: Mapping[ReplicaId, int],
    *,
    buckets: tuple[tuple[str, str], ...] = (),
    packages: str | None = None,
) -> tuple[LaunchPlan, ...]:
    """Return a launch plan for every `waiting` run, a pair (replica, incarnation), that is still current and
    has a node. `buckets`: name and directory of the buckets that are visible to the job. `packages`:
    directory of `trainshed_reduction`, for jobs with reducers."""
    by_replica = {slot.replica: slot for slot in slots}
    endpoints = {slot.replica: Endpoint(slot.host, slot.port) for slot in slots}
    port = master_port(job.uid, job.attempt)
    gang = PlacedAttempt(job.name, job.spec, endpoints, port, job.uid, job.attempt)
    hosts = tuple((slot.hostname, slot.address) for slot in slots)
    plans: list[LaunchPlan] = []
    for replica in job.replicas:
        if waiting.get(replica.id) != replica.incarnation or not replica.node:
            continue
        pool, slot = job.spec.pool(replica.id.pool), by_replica[replica.id]
        part = reduction_part(job.spec, replica.id, packages)
        runtime = prepared[pool.program.environment]
        image = runtime.image
        environ = environment(
            gang,
            replica.id,
            image=dict(image.environ) if image else None,
            packages=REDUCTION_PACKAGES if image and image.root and part.packages else part.packages,
        )
        argv = _argv(job, replica, dict(environ), image)
        plans.append(
            LaunchPlan(
                job_uid=job.uid,
                attempt=job.attempt,
                replica=replica.id,
                incarnation=replica.incarnation,
                argv=argv,
                environ=environ,
                hostname=slot.hostname,
                address=slot.address,
                hosts=hosts,
                software=Software(
                    template=runtime.template or None,
                    path=runtime.path,
                    read_only=(*runtime.read_only, *((part.packages,) if part.packages else ())),
                    image=ImageRoot(directory=image.root, workdir=image.workdir, user=image.user)
                    if image
                    else None,
                ),
                limits=Limits(
                    memory=launching.memory_limit(pool.machine.memory_limit_bytes, job.memory_factor),
                    disk=pool.disk.size_gb * GIB,
                    cpu_weight=max(1, round(pool.machine.vcpus * 100)),
                    stall_after=stall_after(job),
                ),
                account=Account(
                    project=job.name.project_id,
                    # Do not read the account from the program's variable, because the job's `env` may
                    # override the variable.
                    service_account=service_account(job.name.project_id, job.spec),
                    region=job.spec.region,
                    machine_type=pool.machine.type,
                    is_spot=job.spec.scheduling.strategy is Strategy.SPOT,
                ),
                buckets=buckets,
                # Only the primary of a trial reports its metrics (facts/tuning#metrics).
                watch_metrics=bool(job.spec.trial) and replica.id.is_primary,
                reduction=part,
                warm=_warm(job, replica, argv, runtime, launching),
            )
        )
    return tuple(plans)


def master_port(uid: JobUid, attempt: int) -> int:
    """Return the port of PyTorch's rendezvous.

    The port is below the ephemeral ports, and differs between jobs. The rendezvous store binds the wildcard
    address, which jobs on one machine share (docs/adr/0005).
    """
    digest = hashlib.sha256(b"rendezvous:%d:%d" % (uid, attempt)).digest()
    return 10_000 + int.from_bytes(digest[:4], "big") % 20_000


def stall_after(job: Job) -> int | None:
    """Return the time without progress (ns) after which the job's programs are ended, or None for never. A
    label that is no longer a number is ignored."""
    text = dict(job.labels).get(STALL_LABEL, "")
    return min(int(text), 1 << 31) * 10**9 or None if text.isdecimal() else None


def reduction_part(spec: JobSpec, replica: ReplicaId, packages: str | None) -> ReductionPart:
    """Return a replica's role in reductions.

    In each pool of workers, the first replica is expected to use the reducers, because all replicas of a pool
    run one program. A job may declare that it does not use reducers. `packages`: directory of
    `trainshed_reduction`.
    """
    if not takes_part_in_reduction(spec, replica):
        return ReductionPart()
    environ = dict(spec.pool(replica.pool).program.env)
    is_expected = replica.pool < PS_POOL and not replica.index and environ.get(MODE) != "off"
    return ReductionPart(packages, len(reducers(spec)), is_expected)


def _warm(
    job: Job, replica: Replica, argv: tuple[str, ...], runtime: PreparedRuntime, launching: LaunchDefaults
) -> WarmStart | None:
    """Return the warm start of a program, or None without one (spec/program#warm-starts)."""
    pool = job.spec.pool(replica.id.pool)
    label = dict(job.labels).get(WARM_LABEL, "")
    if label != "on":
        is_trial = bool(job.spec.trial) and pool.program.module is not None
        default = launching.warm_starts
        if label == "off" or default == "off" or (default == "trials" and not is_trial):
            return None
    source = runtime.preloadable
    accelerators = pool.machine.accelerators
    warm = warm_start.of_program(
        argv,
        runtime=source.template if source else None,
        modules=source.modules if source else (),
        in_image=runtime.image is not None,
        gpus=accelerators.count if accelerators else 0,
        reduces=takes_part_in_reduction(job.spec, replica.id),
    )
    # Only jobs that requested a warm start receive the reason for a cold one.
    return None if warm.cold_because and label != "on" else warm


def _argv(job: Job, replica: Replica, environ: Mapping[str, str], image: Image | None) -> tuple[str, ...]:
    """Return the command line of a replica. In an image, the image's own Python installs the packages
    immediately before the program starts."""
    if image is None:
        return arguments(job.spec, replica.id, environ)
    program = job.spec.pool(replica.id.pool).program
    argv = arguments(job.spec, replica.id, environ, entrypoint=image.entrypoint, command=image.command)
    if image.unread and not program.command:
        raise PackageFailed(
            f"The program of the image {program.runtime.image} (ENTRYPOINT and CMD) is "
            f"unknown: {image.unread}. Set the command of the job's container, or give the "
            "service access to the registry (registry_auth, insecure_registries of its "
            "engine)."
        )
    if not argv:
        raise PackageFailed(
            f"The image {program.runtime.image} has no program (neither ENTRYPOINT nor "
            "CMD), and the job specifies none. Set the command of its container."
        )
    if not program.package_uris:
        return argv
    # Imported here, because an idle service should not load code that is needed only inside images.
    from trainshed.runtimes.images import executor

    return executor.wrap_command(tuple((package.uri, package.digest) for package in program.packages), argv)
