"""Parses the parts of a worker pool that both public APIs share, and warns about valid pools that may not
work as their author expects (spec/submit#warnings). Pure.

These parts are the machine with its accelerators and disk (facts/machines#disks), the runtime of the image,
the default program of a container (spec/program#arguments, facts/packaging#images), and the program of
reducers. The workers decide whether there are enough reducers (`trainshed_reduction.layout`).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec.structs import replace

from trainshed.core.catalog import images, machines
from trainshed.core.catalog.machines import RETIRED, MachineType
from trainshed.core.cluster import PS_POOL, reducers_of
from trainshed.core.errors import closest
from trainshed.core.job import Accelerators, Disk, Machine, Program, WorkerPool
from trainshed.core.names import Api
from trainshed.core.requests import Section
from trainshed.core.runtime import CONTAINER, REDUCERS, RuntimeCatalog, RuntimeChoice
from trainshed.core.specs import syntax
from trainshed_reduction import variables

DISK_TYPES = {Api.VERTEX: ("pd-ssd", "pd-standard", "hyperdisk-balanced"), Api.ML: ("pd-ssd", "pd-standard")}
HYPERDISK_MACHINES = frozenset({"a3-ultragpu-8g", "a4-highgpu-8g"})
"""Machines with hyperdisk-balanced as their default disk (facts/machines#disks)."""
MIN_DISK_GB = 100
MAX_DISK_GB = 64_000
MAX_REPLICAS = 2_000
"""Maximum number of replicas in one pool. It limits the cost of a mistyped number."""
NO_TPU = "This service has no TPUs. Choose machines with GPUs, or without accelerators."
UNKNOWN_RUNTIME = RuntimeChoice(family="", version="", python_version="")
"""The runtime of a program whose image or version was rejected."""
_MODULE, _PACKAGES = "--module_name", "--package_uris"
REDUCERS_ELSEWHERE = "The reduction server runs only in the third worker pool (worker_pool_specs[2])."
_IGNORED = (
    "Reducers run the service's own program and ignore the command and arguments "
    "of worker pool 2. (gcloud applies --command and --args to all pools.)"
)
_REFERENCE = "$("
"""The beginning of a reference, which is replaced by the value of another variable or of a secret."""


def read_machine_type(section: Section, field: str, api: Api) -> MachineType | None:
    """Parse the name of a machine type for requests to `api`. Return None for an invalid type, which is
    reported in the public wording (facts/limits#error-texts)."""
    name = section.text(field)
    kind = machines.machine_types().get(name)
    if kind is not None and api in kind.apis:
        return kind
    names = (machine.name for machine in machines.requestable_types(api))
    near = closest(name, names) or " List the supported types with: trainshed machine-types."
    if name.startswith(("cloud-tpu", "cloud_tpu", "ct", "tpu")):
        near = f" {NO_TPU}"
    section.fault(field, f"Machine type {name} is not supported.{near}")
    return None


def machine_of(machine: MachineType, devices: Accelerators | None = None) -> Machine:
    """Return a machine of this type with its sizes and with the accelerators `devices`. If `devices` is None,
    a legacy type has its own accelerators."""
    if devices is None and machine.accelerator_type:
        devices = Accelerators(machine.accelerator_type, machine.accelerator_count)
    memory, limit = machine.memory_bytes, machine.memory_limit_bytes
    return Machine(machine.name, machine.vcpus, memory, limit, devices)


def read_accelerators(
    section: Section, fields: tuple[str, str], machine: MachineType, api: Api
) -> Accelerators | None:
    """Parse the type and the number of accelerators, and check whether the machine supports them."""
    (type_field, count_field), allowed = fields, machines.allowed_accelerators(machine, api)
    kind, count = section.enum(type_field), section.integer(count_field)
    choices = "; ".join(f"{name} x {_either(counts)}" for name, counts in allowed.items())
    if not kind and count:
        section.fault(count_field, "An accelerator count is set without an accelerator type. Set both.")
    elif not kind and machine.needs_accelerators:
        section.fault(type_field, f"Machine type {machine.name} requires an accelerator type: {choices}.")
    elif kind and kind not in allowed:
        hint = f"It supports {choices}." if choices else "It supports no accelerators."
        text = f'Accelerator "{kind}" is not supported for machine type "{machine.name}". {hint}'
        section.fault(type_field, text)
    elif kind and count not in allowed[kind]:
        wrong = (
            f'Accelerator count {count} of "{kind}" is not supported for machine type "{machine.name}"'
            if count > 0
            else f"The number of {kind} accelerators must be set"
        )
        section.fault(count_field, f"{wrong}; use {_either(allowed[kind])}.")
    return Accelerators(kind, count) if kind else None


def default_disk(machine_type: str) -> Disk:
    """Return the default disk of a machine type."""
    return Disk("hyperdisk-balanced") if machine_type in HYPERDISK_MACHINES else Disk()


def read_disk(section: Section, api: Api, machine_type: str = "") -> Disk:
    """Parse `bootDiskType` and `bootDiskSizeGb` of a disk spec, with defaults (spec/machines#disk,
    facts/machines#disks)."""
    default = default_disk(machine_type)
    disk_type = section.text("bootDiskType") or default.type
    size = section.integer("bootDiskSizeGb") or default.size_gb
    if disk_type not in DISK_TYPES[api]:
        section.fault(
            "bootDiskType", f"{disk_type!r} is not a disk type; choose {' or '.join(DISK_TYPES[api])}."
        )
    if not MIN_DISK_GB <= size <= MAX_DISK_GB:
        section.fault(
            "bootDiskSizeGb",
            f"A boot disk of {size} GB is not supported; choose {MIN_DISK_GB} to {MAX_DISK_GB} GB.",
        )
    return Disk(disk_type, size)


def _either(counts: Iterable[int]) -> str:
    *most, last = (str(count) for count in counts)
    return f"{', '.join(most)} or {last}" if most else last


def read_runtime(
    section: Section, field: str, image_uri: str, runtimes: RuntimeCatalog, elsewhere: str
) -> RuntimeChoice:
    """Return the runtime that replaces the image in `field`. `elsewhere`: the reason why reduction-server
    images are not allowed here, or "" if they are allowed. Errors are added to the section's faults."""
    if not images.is_reference(image_uri):
        section.fault(field, f"{image_uri!r} {images.NO_REFERENCE}")
    elif elsewhere and images.is_reduction_server(image_uri):
        section.fault(field, elsewhere)
    else:
        answer = runtimes.for_image(image_uri)
        listed = images.prebuilt_name(image_uri)
        is_mapped = isinstance(answer, RuntimeChoice) and answer.family != CONTAINER
        if listed and not is_mapped:
            section.fault(field, f"{image_uri!r} has no registry. Did you mean {listed}?")
        elif isinstance(answer, RuntimeChoice):
            return answer
        else:
            section.fault(field, answer.reason)
    return UNKNOWN_RUNTIME


def needs_command(runtime: RuntimeChoice, image_uri: str) -> bool:
    """Return whether a container with this image needs a command: an environment replaces the image and has
    no entry point. Reducers have an entry point. If the runtime is unknown because it was rejected, the
    image's name decides."""
    if not runtime.family:
        return images.parse_prebuilt(image_uri) is not None
    return runtime.family not in (CONTAINER, REDUCERS)


def names_package(program: Program) -> bool:
    """Return whether the arguments are for the program in the published training images. That program
    installs the packages of `--package_uris` and runs the module of `--module_name` with all other
    arguments."""
    return not program.command and bool(_take_option(program.args, _MODULE)[0])


def read_package(program: Program, section: Section, field: str) -> Program:
    """Return the program as a Python package: with the packages and the module that the arguments in `field`
    specify. Errors are added to the section's faults."""
    modules, others = _take_option(program.args, _MODULE)
    uris, others = _take_option(others, _PACKAGES)
    packages = tuple(uri for text in uris for uri in text.split(",") if uri)
    if fault := syntax.module_fault(modules[-1]):
        section.fault(field, f"{_MODULE}: {fault}")
    for fault in filter(None, map(syntax.package_fault, packages)):
        section.fault(field, f"{_PACKAGES}: {fault}")
    if not packages:
        section.fault(field, f"{_PACKAGES}: At least one Python package must be given.")
    return replace(program, module=modules[-1], package_uris=packages, args=others)


def _take_option(args: tuple[str, ...], name: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the values of an option, written as `NAME=VALUE` or as two arguments, and all other
    arguments."""
    values: list[str] = []
    others: list[str] = []
    rest = iter(args)
    for argument in rest:
        if argument.startswith(f"{name}="):
            values.append(argument.removeprefix(f"{name}="))
        elif argument == name:
            values.append(next(rest, ""))
        else:
            others.append(argument)
    return values, tuple(others)


def are_reducers(runtime: RuntimeChoice) -> bool:
    """Return whether a reduction-server image selects this service's reducers. False if an operator has
    mapped the image to another program."""
    return runtime.family == REDUCERS


def reducer_program(
    runtime: RuntimeChoice, image_uri: str, env: tuple[tuple[str, str], ...], *, is_chosen: bool
) -> Program:
    """Return the program of a reducer. `is_chosen`: whether the job sets a program, as gcloud requires. A
    notice then reports that the program is not used."""
    if is_chosen:
        runtime = replace(runtime, notices=(*runtime.notices, _IGNORED))
    return Program(runtime=runtime, image_uri=image_uri, env=env)


def check_reduction_variables(pools: Sequence[Section]) -> None:
    """Check the variables of the Reduction Server in the `env` of the pools that take part in a reduction.
    Errors are added to the sections' faults. Values with `$(NAME)` are known only when a program starts, so
    the program checks them."""
    for pool in pools:
        for spec in (pool.section("containerSpec"), pool.section("pythonPackageSpec")):
            env = list(spec.sections("env"))
            for variable in env:
                name, value = variable.text("name"), variable.text("value")
                if fault := None if _REFERENCE in value else variables.find_error(name, value):
                    variable.fault("value", f"{fault}.")


_TRAINS_ACROSS_REPLICAS = frozenset({"tensorflow", "pytorch", CONTAINER})
"""Frameworks (`RuntimeChoice.family`) whose programs may use several workers. Container images are included,
because their programs are unknown."""
_HAS_PARAMETER_SERVERS = frozenset({"tensorflow", CONTAINER})
USE_NONE = frozenset({"python", "scikit-learn", "tensorflow", "xgboost"})
"""The frameworks (`RuntimeChoice.family`) whose programs cannot use reducers. All other programs may use
them, such as those in users' container images."""


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
                f"The job has {pool.replica_count} evaluators. Programs expect one, and the "
                "additional ones repeat its work."
            )
    texts += _reducer_warnings(pools)
    if gpus := ", ".join(sorted(_devices(pools) & RETIRED)):
        texts.append(
            f"The public services no longer offer {gpus}. This service accepts the job and "
            f"treats {gpus} as a request for GPUs like any other."
        )
    texts += dict.fromkeys(
        f"The job requests a boot disk of {pool.disk.size_gb} GB {pool.disk.type}, but "
        "its programs store their files on the disk of the host. The size counts "
        "towards quotas, and the job gets a warning when it uses more."
        for pool in pools
        if pool.disk != default_disk(pool.machine.type)
    )
    return tuple(texts)


def _reducer_warnings(pools: tuple[WorkerPool, ...]) -> tuple[str, ...]:
    """Return the warnings about unused reducers, or none if the job may use its reducers."""
    if reducers_of(pools) is None:
        return ()
    workers = [pool for pool in pools if pool.position < PS_POOL]
    families = {pool.program.runtime.family for pool in workers}
    if families <= USE_NONE:
        return (
            f"Programs of {' and '.join(sorted(families))} do not use reducers, so worker "
            "pool 2 will stay idle. Remove it, or train with PyTorch's "
            "DistributedDataParallel.",
        )
    if (count := sum(pool.replica_count for pool in workers)) < 3:
        return (
            f"The job has reducers and only {count} worker{'s' * (count > 1)}. Reducers "
            "make jobs faster only from three workers on.",
        )
    return ()


def missing_gpu_warning(pools: tuple[WorkerPool, ...], there: Collection[str]) -> str | None:
    """Return a warning if a job requests GPUs and no node has GPUs, otherwise None (spec/queue#capacity).
    `there`: the types of accelerators on the nodes."""
    devices = sorted(kind for kind in _devices(pools) if kind.startswith("NVIDIA"))
    if not devices or any(kind.startswith("NVIDIA") or not kind for kind in there):
        return None
    return (
        f"The job requests GPUs ({', '.join(devices)}), but no node of this service has "
        "any. Its programs run without them, and CUDA_VISIBLE_DEVICES is empty."
    )


_DIRECTORY = re.compile(r"/gcs/([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])")


def named_directories(pools: tuple[WorkerPool, ...]) -> Iterator[str]:
    """Yield the buckets that the programs of these pools expect as directories `/gcs/NAME`."""
    for pool in pools:
        program = pool.program
        for text in (*program.command, *program.args, *(value for _, value in program.env)):
            yield from _DIRECTORY.findall(text)


def unmounted_bucket_warning(bucket: str) -> str:
    """Return a warning about a bucket that is not mounted as a directory."""
    return (
        f"The job's programs refer to /gcs/{bucket}, but this directory does not exist. "
        "The bucket is in an external store, has versioning, or holds new objects, and "
        "cannot be shown as a directory. Programs can reach its objects only as "
        f"gs://{bucket}."
    )


def _idle(role: str, family: str) -> str:
    return (
        f"The job has {role}, but its runtime ({family}) has no TensorFlow. These "
        "replicas run the program with CLUSTER_SPEC and TF_CONFIG, and share no work "
        "unless the program distributes it."
    )


def _devices(pools: tuple[WorkerPool, ...]) -> set[str]:
    """Return the types of accelerators that these pools request."""
    return {pool.machine.accelerators.type for pool in pools if pool.machine.accelerators}
