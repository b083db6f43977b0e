"""The worker pools of a Vertex CustomJob: positions, machines, programs (spec/submit, facts/program,
facts/packaging)."""

from itertools import islice

from trainshed.core import reducers
from trainshed.core.catalog import accelerators, images
from trainshed.core.catalog.machines import MachineType
from trainshed.core.job.spec import Accelerators, Machine, Program, WorkerPool
from trainshed.core.names import Api
from trainshed.core.reducers import reducers_of
from trainshed.core.requests import Section, is_blank
from trainshed.core.runtime import RuntimeCatalog, RuntimeChoice, RuntimeRefusal
from trainshed.core.specs import machines, syntax
from trainshed.core.specs.entry_points import names_package, needs_command, read_package

MAX_POOLS = 4
REDUCER_POOL = 2

_UNKNOWN_RUNTIME = RuntimeChoice("", "", "")
_NO_MACHINE = Machine("", 0, 0, 0)
_UNSERVED = {
    "nfsMounts": "NFS mounts are not served; put the files into a bucket and read them at /gcs/BUCKET.",
    "lustreMounts": "Lustre mounts are not served; put the files into a bucket and read them at "
    "/gcs/BUCKET.",
}


def read_pools(job_spec: Section, runtimes: RuntimeCatalog) -> tuple[WorkerPool, ...]:
    """The pools that have replicas. What is wrong is reported to the section's faults; the pools of a
    faulty request are of no use."""
    count = job_spec.count("workerPoolSpecs")
    given = list(islice(job_spec.sections("workerPoolSpecs"), MAX_POOLS))
    if not given:
        job_spec.fault("workerPoolSpecs", "At least one worker pool must be given.")
    if count > MAX_POOLS:
        job_spec.fault(
            "workerPoolSpecs",
            f"{count} worker pools are given; at most {MAX_POOLS} are allowed: primary, workers, "
            "parameter servers or reducers, evaluators.",
        )
    pools: list[WorkerPool] = []
    for position, pool in enumerate(given):
        if is_blank(pool.values):
            if position == 0:
                pool.fault(
                    "", "The first worker pool is the primary replica; it cannot be skipped."
                )
            continue
        pools.append(_PoolReader(pool, position, runtimes).read())
    if reducers_of(pools) is not None:
        reducers.check_variables(given[: REDUCER_POOL + 1])
    return tuple(pools)


class _PoolReader:
    """Reads one pool. Exists to give the steps their three common parameters."""

    def __init__(self, pool: Section, position: int, runtimes: RuntimeCatalog) -> None:
        self._pool = pool
        self._position = position
        self._runtimes = runtimes

    def read(self) -> WorkerPool:
        for name, reason in _UNSERVED.items():
            if self._pool.is_set(name):
                self._pool.fault(name, reason)
        program = self._program()
        is_reducer = images.is_reduction_server(program.image_uri)
        machine = read_machine(self._pool.section("machineSpec"), is_reducer=is_reducer)
        disk = machines.read_disk(self._pool.section("diskSpec"), Api.VERTEX, machine.type)
        return WorkerPool(self._position, self._replica_count(), machine, program, disk)

    def _replica_count(self) -> int:
        count = self._pool.integer("replicaCount")
        if self._position == 0 and count != 1:
            self._pool.fault(
                "replicaCount",
                f"The first worker pool is the primary replica and must have exactly 1, not {count}; "
                "put further replicas into the second pool.",
            )
        elif not 1 <= count <= machines.MAX_REPLICAS:
            self._pool.fault(
                "replicaCount",
                f"A worker pool needs 1 to {machines.MAX_REPLICAS} replicas, not {count}"
                f"{'; skip a position with an empty pool {}' if count == 0 else ''}.",
            )
            return 1
        return count

    def _program(self) -> Program:
        has_container = self._pool.has("containerSpec")
        has_package = self._pool.has("pythonPackageSpec")
        if has_container == has_package:
            said = "both are" if has_container else "neither is"
            self._pool.fault(
                "containerSpec",
                f"Exactly one of container_spec and python_package_spec must be set; {said}.",
            )
        if has_package:
            return self._package(self._pool.section("pythonPackageSpec"))
        if has_container:
            return self._container(self._pool.section("containerSpec"))
        return Program(_UNKNOWN_RUNTIME)

    def _package(self, spec: Section) -> Program:
        uri = spec.text("executorImageUri")
        runtime = _UNKNOWN_RUNTIME
        if not uri:
            spec.fault(
                "executorImageUri", "The executor image must be set to a prebuilt training image."
            )
        elif not images.is_reference(uri):
            spec.fault(
                "executorImageUri", f"{uri!r} is not an image name such as HOST/PROJECT/NAME:TAG."
            )
        elif images.is_reduction_server(uri):
            spec.fault(
                "executorImageUri",
                "The reduction server runs no Python package; name it in container_spec.image_uri of the third worker pool.",
            )
        else:
            runtime = self._runtime(spec, "executorImageUri", uri)
        module = spec.text("pythonModule")
        if fault := syntax.module_fault(module):
            spec.fault("pythonModule", fault)
        return Program(
            runtime=runtime,
            image_uri=uri,
            package_uris=syntax.read_packages(spec),
            module=module,
            args=syntax.read_arguments(spec, "args", expanded=True),
            env=syntax.read_env(spec),
        )

    def _container(self, spec: Section) -> Program:
        uri = spec.text("imageUri")
        command = syntax.read_arguments(spec, "command", expanded=True)
        runtime = _UNKNOWN_RUNTIME
        if not uri:
            spec.fault("imageUri", "The container image must be set.")
        elif not images.is_reference(uri):
            spec.fault("imageUri", f"{uri!r} is not an image name such as HOST/PROJECT/NAME:TAG.")
        elif images.is_reduction_server(uri) and self._position != REDUCER_POOL:
            spec.fault("imageUri", reducers.ELSEWHERE)
        else:
            runtime = self._runtime(spec, "imageUri", uri)
        args = syntax.read_arguments(spec, "args", expanded=True)
        env = syntax.read_env(spec)
        program = Program(runtime=runtime, image_uri=uri, command=command, args=args, env=env)
        if needs_command(runtime, uri) and names_package(program):
            return read_package(program, spec, "args")
        if needs_command(runtime, uri) and not command:
            spec.fault(
                "command",
                "An environment of the service stands for this image, and an entry point of its own is not "
                "known; give a command, for example python3 -m trainer.task, or use python_package_spec.",
            )
        if reducers.are_ours(runtime):
            return reducers.program(runtime, uri, env, given=bool(command or args))
        return program

    def _runtime(self, spec: Section, field: str, uri: str) -> RuntimeChoice:
        answer = self._runtimes.for_image(uri)
        if isinstance(answer, RuntimeRefusal):
            spec.fault(field, answer.reason)
            return _UNKNOWN_RUNTIME
        return answer


def read_machine(spec: Section, *, is_reducer: bool = False) -> Machine:
    """A MachineSpec. What is wrong is reported to the section's faults."""
    name = spec.text("machineType")
    if not name:
        spec.fault("machineType", "The machine type must be set, for example n1-standard-4.")
        return _NO_MACHINE
    found = machines.machine_named(name, Api.VERTEX)
    if found is None:
        spec.fault("machineType", machines.unknown_machine(name, Api.VERTEX))
        return _NO_MACHINE
    _check_topology(spec, found)
    kind, count = spec.enum("acceleratorType"), spec.integer("acceleratorCount")
    if is_reducer and (kind or count or found.needs_accelerators):
        spec.fault(
            "acceleratorType" if kind else "acceleratorCount" if count else "machineType",
            "Reducers do not use accelerators; give the pool of the reduction server CPU machines, "
            "for example n1-highcpu-16.",
        )
        return machines.resolve(found)
    type_fault, count_fault = machines.accelerator_faults(found, kind, count, Api.VERTEX)
    if type_fault:
        # A count without a type is the count's fault.
        spec.fault("acceleratorCount" if count and not kind else "acceleratorType", type_fault)
    if count_fault:
        spec.fault("acceleratorCount", count_fault)
    return machines.resolve(found, Accelerators(kind, count) if kind else None)


def _check_topology(spec: Section, machine: MachineType) -> None:
    topologies = accelerators.tpu_topologies(machine)
    given = spec.text("tpuTopology")
    if given and not topologies:
        spec.fault("tpuTopology", f"Machine type {machine.name} has no TPU topology; leave it out.")
    elif topologies and given not in topologies:
        asked = (
            f"TPU topology {given!r} is not supported for"
            if given
            else "A TPU topology is needed for"
        )
        spec.fault(
            "tpuTopology",
            f"{asked} machine type {machine.name}; choose {', '.join(topologies)}.",
        )
