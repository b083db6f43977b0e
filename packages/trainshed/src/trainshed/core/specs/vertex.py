"""Converts a Vertex CustomJob in public JSON to a `JobSpec`, or to a list of all its errors.

Rules: spec/submit, facts/resources#vertex, facts/lifecycle#scheduling, facts/packaging, facts/limits.
Unsupported fields cause an error if the program could not run as intended. Otherwise they cause a warning.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from trainshed.core.catalog import images
from trainshed.core.cluster import PS_POOL, reducers_of
from trainshed.core.job import (
    DEFAULT_TIMEOUT,
    JobDraft,
    JobSpec,
    Machine,
    Program,
    Scheduling,
    Strategy,
    WorkerPool,
)
from trainshed.core.names import PLACE, Api, normalize_email, read_name
from trainshed.core.requests import Faults, Section, is_blank
from trainshed.core.runtime import RuntimeCatalog
from trainshed.core.specs import syntax, worker_pool

FLEX_START_WAIT = 24 * 3600 * 10**9
"""Default maximum wait of a FLEX_START job for its machines, in nanoseconds (facts/lifecycle#scheduling)."""

_STRATEGIES = {
    "": Strategy.STANDARD,
    "ON_DEMAND": Strategy.STANDARD,
    "LOW_COST": Strategy.SPOT,
    "STANDARD": Strategy.STANDARD,
    "SPOT": Strategy.SPOT,
    "FLEX_START": Strategy.FLEX_START,
}
WITHOUT_EFFECT = {
    "network": "the job uses the network of its host",
    "reservedIpRanges": "the job uses the network of its host",
    "pscInterfaceConfig": "the job uses the network of its host",
    "models": "only internal jobs of the public service use it",
    "protectedArtifactLocationId": "protected artifacts do not exist",
}
"""Unsupported fields of the job's spec, and the actual behavior for each."""

_WITHOUT_EFFECT_ON_MACHINES: Mapping[str, str] = dict.fromkeys(
    ("reservationAffinity", "gpuPartitionSize"), "the job uses the resources of the host"
)


def parse_custom_job(
    public: Mapping[str, Any], *, region: str, runtimes: RuntimeCatalog
) -> JobDraft[JobSpec]:
    """Parse a CustomJob.

    `public` is its proto3 JSON: camelCase keys, enum names, int64 as strings, unset fields absent, as the
    package `wire` provides it. `region` is the location of the request and is not validated. Raise
    InvalidRequest with all violations. Their field paths are in snake_case, relative to the CustomJob.
    """
    job = Section(public, "", Faults())
    display_name = syntax.read_display_name(job)
    labels = syntax.read_labels(job)
    spec = read_job_spec(job.section("jobSpec"), region, runtimes)
    job.faults.refuse()
    return JobDraft(with_warnings(spec, *unsupported_fields(job)), display_name, labels)


def read_job_spec(spec: Section, region: str, runtimes: RuntimeCatalog) -> JobSpec:
    """Parse the CustomJobSpec in a message. Errors are added to the section's faults. The spec of a faulty
    request is not usable."""
    pools = read_pools(spec, runtimes)
    scheduling = _read_scheduling(spec.section("scheduling"))
    spec.check("serviceAccount", syntax.service_account_fault(spec.text("serviceAccount")))
    _check_tensorboard(spec)
    output = _read_output_directory(spec)
    job_json = msgspec.json.encode(spec.values).decode()
    replicas = sum(pool.replica_count for pool in pools)
    spec.check("workerPoolSpecs", syntax.cluster_size_fault(replicas))
    read = JobSpec(
        api=Api.VERTEX,
        region=region,
        pools=pools,
        scheduling=scheduling,
        job_json=job_json,
        service_account=normalize_email(spec.text("serviceAccount")) or None,
        base_output_directory=output,
        warnings=(
            *_ineffective_fields(spec),
            *worker_pool.pool_warnings(pools),
            *syntax.cluster_size_warnings(job_json, replicas),
        ),
        persistent_resource=spec.text("persistentResourceId") or None,
    )
    if pools and spec.is_set("tensorboard") and not read.log_directory:
        return with_warnings(
            read,
            f"{spec.path_of('tensorboard')} is set without {spec.path_of('baseOutputDirectory')}: "
            "programs do not receive AIP_TENSORBOARD_LOG_DIR, and the service does not "
            "read event files.",
        )
    return read


def unsupported_fields(resource: Section) -> tuple[str, ...]:
    """Return warnings about unsupported top-level fields of a job or pipeline."""
    instead = {"encryptionSpec": "the job's files are stored without that key"}
    return syntax.ineffective_fields(resource, instead)


def with_warnings(spec: JobSpec, *more: str) -> JobSpec:
    return replace(spec, warnings=(*spec.warnings, *more)) if more else spec


def _read_scheduling(section: Section) -> Scheduling:
    strategy = syntax.read_choice(section, "strategy", _STRATEGIES)
    timeout = section.duration("timeout") or DEFAULT_TIMEOUT
    if not 0 < timeout <= syntax.MAX_DURATION:
        section.fault("timeout", "The timeout must be positive and at most 100 years.")
    wait = section.duration("maxWaitDuration")
    if wait is not None and not 0 <= wait <= syntax.MAX_DURATION:
        section.fault("maxWaitDuration", "The wait must be positive, or 0s for no limit.")
    if strategy is Strategy.FLEX_START and wait is None:
        wait = FLEX_START_WAIT
    no_retries = section.flag("disableRetries")
    return Scheduling(
        timeout=timeout,
        max_wait=wait or None,
        # Without retries, the whole job is not restarted either (facts/lifecycle#scheduling).
        restart_job_on_worker_restart=section.flag("restartJobOnWorkerRestart") and not no_retries,
        disable_retries=no_retries,
        strategy=strategy,
    )


def _check_tensorboard(spec: Section) -> None:
    """Check the form of the Tensorboard's name. The API checks whether the Tensorboard exists."""
    if name := spec.text("tensorboard"):
        with spec.faults.collect():
            read_name(name, f"{PLACE}/tensorboards/TENSORBOARD", spec.path_of("tensorboard"))


def _read_output_directory(spec: Section) -> str | None:
    section = spec.section("baseOutputDirectory")
    uri = section.text("outputUriPrefix")
    if spec.has("baseOutputDirectory") and not uri:
        section.fault("outputUriPrefix", "Set a Cloud Storage path: gs://BUCKET/PATH.")
    elif uri and (fault := syntax.bucket_path_fault(uri)):
        section.fault("outputUriPrefix", fault)
    return uri or None


def _ineffective_fields(spec: Section) -> tuple[str, ...]:
    """Return warnings about fields without effect."""
    texts = [*syntax.ineffective_fields(spec, WITHOUT_EFFECT)]
    for pool in islice(spec.sections("workerPoolSpecs"), MAX_POOLS):
        texts += syntax.ineffective_fields(pool.section("machineSpec"), _WITHOUT_EFFECT_ON_MACHINES)
    return tuple(texts)


MAX_POOLS = 4

_NO_MACHINE = Machine("", 0, 0, 0)
_UNSERVED: Mapping[str, str] = dict.fromkeys(
    ("nfsMounts", "lustreMounts"),
    "It is not supported. Put the files into a bucket and read them at /gcs/BUCKET.",
)


def read_pools(job_spec: Section, runtimes: RuntimeCatalog) -> tuple[WorkerPool, ...]:
    """Parse the pools with replicas. Errors are added to the section's faults. The pools of a faulty request
    are not usable."""
    count = job_spec.count("workerPoolSpecs")
    sections = list(islice(job_spec.sections("workerPoolSpecs"), MAX_POOLS))
    if not sections:
        job_spec.fault("workerPoolSpecs", "At least one worker pool must be set.")
    if count > MAX_POOLS:
        job_spec.fault(
            "workerPoolSpecs",
            f"The job has {count} worker pools; at most {MAX_POOLS} are allowed: primary, "
            "workers, parameter servers or reducers, evaluators.",
        )
    pools: list[WorkerPool] = []
    for position, pool in enumerate(sections):
        if is_blank(pool.values):
            if position == 0:
                pool.fault("", "The first worker pool is the primary replica. It cannot be skipped.")
            continue
        pools.append(_read_pool(pool, position, runtimes))
    if reducers_of(pools) is not None:
        worker_pool.check_reduction_variables(sections[: PS_POOL + 1])
    return tuple(pools)


def _read_pool(pool: Section, position: int, runtimes: RuntimeCatalog) -> WorkerPool:
    syntax.refuse(pool, _UNSERVED)
    program = _read_program(pool, position, runtimes)
    is_reducer = images.is_reduction_server(program.image_uri)
    machine = read_machine(pool.section("machineSpec"), is_reducer=is_reducer)
    disk = worker_pool.read_disk(pool.section("diskSpec"), Api.VERTEX, machine.type)
    count = pool.integer("replicaCount")
    if position == 0 and count != 1:
        pool.fault(
            "replicaCount",
            "The first worker pool is the primary replica and must have exactly 1, not "
            f"{count}. Put further replicas into the second pool.",
        )
    elif not 1 <= count <= worker_pool.MAX_REPLICAS:
        pool.fault(
            "replicaCount",
            f"A worker pool needs 1 to {worker_pool.MAX_REPLICAS} replicas, not {count}"
            f"{'; skip a position with an empty pool {}' if count == 0 else ''}.",
        )
        count = 1
    return WorkerPool(position, count, machine, program, disk)


def _read_program(pool: Section, position: int, runtimes: RuntimeCatalog) -> Program:
    has_container, has_package = pool.has("containerSpec"), pool.has("pythonPackageSpec")
    if has_container == has_package:
        how_many = "both are" if has_container else "neither is"
        pool.fault(
            "containerSpec", f"Exactly one of container_spec and python_package_spec must be set; {how_many}."
        )
    if has_package:
        return _read_package(pool.section("pythonPackageSpec"), runtimes)
    if has_container:
        return _read_container(pool.section("containerSpec"), position, runtimes)
    return Program(worker_pool.UNKNOWN_RUNTIME)


def _read_package(spec: Section, runtimes: RuntimeCatalog) -> Program:
    uri = spec.text("executorImageUri")
    runtime = worker_pool.UNKNOWN_RUNTIME
    if not uri:
        spec.fault("executorImageUri", "The executor image must be set to a prebuilt training image.")
    else:
        runtime = worker_pool.read_runtime(spec, "executorImageUri", uri, runtimes, _NO_PACKAGE)
    return Program(
        runtime=runtime,
        image_uri=uri,
        package_uris=syntax.read_packages(spec),
        module=syntax.read_module(spec),
        args=syntax.read_arguments(spec, "args", expanded=True),
        env=syntax.read_env(spec),
    )


def _read_container(spec: Section, position: int, runtimes: RuntimeCatalog) -> Program:
    uri = spec.text("imageUri")
    command = syntax.read_arguments(spec, "command", expanded=True)
    runtime = worker_pool.UNKNOWN_RUNTIME
    if not uri:
        spec.fault("imageUri", "The container image must be set.")
    else:
        elsewhere = worker_pool.REDUCERS_ELSEWHERE if position != PS_POOL else ""
        runtime = worker_pool.read_runtime(spec, "imageUri", uri, runtimes, elsewhere)
    args = syntax.read_arguments(spec, "args", expanded=True)
    env = syntax.read_env(spec)
    program = Program(runtime=runtime, image_uri=uri, command=command, args=args, env=env)
    if worker_pool.needs_command(runtime, uri) and worker_pool.names_package(program):
        return worker_pool.read_package(program, spec, "args")
    if worker_pool.needs_command(runtime, uri) and not command:
        spec.fault(
            "command",
            "An environment of the service replaces this image, and the image's entry "
            "point is not known. Set a command, for example python3 -m trainer.task, or "
            "use python_package_spec.",
        )
    if worker_pool.are_reducers(runtime):
        return worker_pool.reducer_program(runtime, uri, env, is_chosen=bool(command or args))
    return program


_NO_PACKAGE = (
    "The reduction server does not run Python packages. Set its image in "
    "container_spec.image_uri of the third worker pool."
)


def read_machine(spec: Section, *, is_reducer: bool) -> Machine:
    """Parse a MachineSpec. Errors are added to the section's faults."""
    if not spec.text("machineType"):
        spec.fault("machineType", "The machine type must be set, for example n1-standard-4.")
        return _NO_MACHINE
    machine = worker_pool.read_machine_type(spec, "machineType", Api.VERTEX)
    if machine is None:
        return _NO_MACHINE
    syntax.refuse(spec, {"tpuTopology": worker_pool.NO_TPU})
    kind, count = spec.enum("acceleratorType"), spec.integer("acceleratorCount")
    if is_reducer and (kind or count or machine.needs_accelerators):
        spec.fault(
            "acceleratorType" if kind else "acceleratorCount" if count else "machineType",
            "Reducers do not use accelerators. Use CPU machines in the pool of the "
            "reduction server, for example n1-highcpu-16.",
        )
        return worker_pool.machine_of(machine)
    fields = ("acceleratorType", "acceleratorCount")
    return worker_pool.machine_of(machine, worker_pool.read_accelerators(spec, fields, machine, Api.VERTEX))
