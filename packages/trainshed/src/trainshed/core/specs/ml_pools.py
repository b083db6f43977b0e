"""Parses the pools of an `ml` v1 job: scale tier, machines, counts, accelerators, disks, and the programs
(spec/submit#ml-jobs)."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from trainshed.core.catalog import images
from trainshed.core.catalog.machines import (
    CUSTOM_TIER,
    DEFAULT_TIER,
    MachineType,
    machine_types,
    predefined_tiers,
)
from trainshed.core.cluster import PS_POOL
from trainshed.core.job import Accelerators, Disk, Machine, Program
from trainshed.core.names import Api
from trainshed.core.requests import Section
from trainshed.core.runtime import RuntimeCatalog, RuntimeRefusal
from trainshed.core.specs import syntax, worker_pool


class Role(Struct, frozen=True):
    """One of the four roles: its pool position and the fields that describe it ("" for a role without this
    field)."""

    position: int
    type_field: str
    count_field: str
    config_field: str


ROLES = (
    Role(0, "masterType", "", "masterConfig"),
    Role(1, "workerType", "workerCount", "workerConfig"),
    Role(2, "parameterServerType", "parameterServerCount", "parameterServerConfig"),
    Role(3, "evaluatorType", "evaluatorCount", "evaluatorConfig"),
)


class Hardware(Struct, frozen=True):
    """The machines and disk of one role with replicas."""

    role: Role
    count: int
    machine: Machine
    disk: Disk


def read_hardware(training: Section) -> tuple[Hardware, ...]:
    """Parse the machines of every role with replicas, ascending by position. Errors are added to the
    section's faults."""
    tier = training.text("scaleTier") or DEFAULT_TIER
    if tier == CUSTOM_TIER:
        return _custom(training)
    pools = predefined_tiers().get(tier)
    if pools is None:
        known = ", ".join((*predefined_tiers(), CUSTOM_TIER))
        hint = f" {worker_pool.NO_TPU}" if "TPU" in tier else ""
        training.fault("scaleTier", f"{tier!r} is not a supported scale tier. Choose {known}.{hint}")
        return ()
    _refuse_explicit(training, tier)
    hardware: list[Hardware] = []
    for pool in pools:
        role, kind = ROLES[pool.position], pool.accelerator_type
        devices = Accelerators(kind, pool.accelerator_count) if kind else None
        machine = worker_pool.machine_of(machine_types()[pool.machine_type], devices)
        disk = worker_pool.read_disk(training.section(role.config_field).section("diskConfig"), Api.ML)
        hardware.append(Hardware(role, pool.count, machine, disk))
    return tuple(hardware)


def _refuse_explicit(training: Section, tier: str) -> None:
    """Reject machine types, counts and accelerators in a request with a predefined tier, because the tier
    determines them."""
    text = f"Scale tier {tier} sets the %s itself. Omit this field, or use scale tier CUSTOM."
    for role in ROLES:
        syntax.refuse(training, dict.fromkeys((role.type_field, role.count_field), text % "machines"))
        config = training.section(role.config_field)
        syntax.refuse(config, {"acceleratorConfig": text % "accelerators"})


def _custom(training: Section) -> tuple[Hardware, ...]:
    hardware: list[Hardware] = []
    for role in ROLES:
        count = _count(training, role)
        name = training.text(role.type_field)
        if not name:
            if role.position == 0:
                training.fault(
                    "masterType",
                    "Scale tier CUSTOM requires the master's machine type, for example n1-standard-8.",
                )
            elif (how_many := training.integer(role.count_field)) > 0:
                training.fault(
                    role.type_field,
                    f"{training.path_of(role.count_field)} is {how_many}, so its machine type is required.",
                )
            continue
        machine = worker_pool.read_machine_type(training, role.type_field, Api.ML)
        if machine is None or not count:
            continue
        config = training.section(role.config_field)
        devices = _accelerators(config, machine)
        disk = worker_pool.read_disk(config.section("diskConfig"), Api.ML)
        hardware.append(Hardware(role, count, worker_pool.machine_of(machine, devices), disk))
    return tuple(hardware)


def _count(training: Section, role: Role) -> int:
    if not role.count_field:
        return 1
    count = training.integer(role.count_field)
    if not 0 <= count <= worker_pool.MAX_REPLICAS:
        training.fault(role.count_field, f"The count must be 0 to {worker_pool.MAX_REPLICAS}, not {count}.")
        return 1
    return count


def _accelerators(config: Section, machine: MachineType) -> Accelerators | None:
    section = config.section("acceleratorConfig")
    if machine.is_legacy and (section.enum("type") or section.integer("count")):
        config.fault(
            "acceleratorConfig",
            f"Machine type {machine.name} has built-in accelerators or none. Use a Compute "
            "Engine type such as n1-standard-8 to choose accelerators.",
        )
        return None
    return worker_pool.read_accelerators(section, ("type", "count"), machine, Api.ML)


_OF_CONTAINERS: Mapping[str, str] = dict.fromkeys(
    ("imageUri", "containerCommand", "containerArgs"),
    "Containers require master_config.image_uri, which replaces the runtime.",
)


def read_programs(
    training: Section, roles: Sequence[Role], runtimes: RuntimeCatalog
) -> tuple[dict[int, Program], str | None]:
    """Parse the programs of `roles`, by pool position, and the runtime version (None for an image or the
    newest version). Errors are added to the section's faults."""
    version = training.text("runtimeVersion")
    image = training.section("masterConfig").text("imageUri")
    if version and image:
        training.fault(
            "runtimeVersion",
            "Only one of runtime_version and master_config.image_uri can be set. Omit one of them.",
        )
    if image:
        return _containers(training, image, roles, runtimes), None
    return dict.fromkeys((r.position for r in roles), _package(training, runtimes)), version or None


def _package(training: Section, runtimes: RuntimeCatalog) -> Program:
    """Parse the package that every role runs, on the requested runtime version or the default runtime."""
    version, python = training.text("runtimeVersion"), training.text("pythonVersion")
    runtime = worker_pool.UNKNOWN_RUNTIME
    if fault := images.pair_fault(version, python):
        known = version in images.runtime_versions() or not version
        training.fault("pythonVersion" if known else "runtimeVersion", fault)
    else:
        if version and not python:
            python = images.default_python(version)
        answer = runtimes.for_runtime_version(version, python)
        if isinstance(answer, RuntimeRefusal):
            training.fault("runtimeVersion", answer.reason)
        else:
            runtime = answer
    for role in ROLES:
        syntax.refuse(training.section(role.config_field), _OF_CONTAINERS)
    return Program(
        runtime=runtime,
        package_uris=syntax.read_packages(training),
        module=syntax.read_module(training),
        args=syntax.read_arguments(training, "args"),
    )


def _containers(
    training: Section, master_image: str, roles: Sequence[Role], runtimes: RuntimeCatalog
) -> dict[int, Program]:
    syntax.refuse(
        training,
        {
            "pythonVersion": (
                "A Python version requires a runtime version and cannot be combined with an "
                "image. Omit one of them."
            )
        },
    )
    programs: dict[int, Program] = {}
    for role in roles:
        config = training.section(role.config_field)
        # Roles without an image of their own use the master's image (facts/program#arguments).
        image = config.text("imageUri") or master_image
        programs[role.position] = _container(training, config, image, role, runtimes)
    return programs


def _container(
    training: Section, config: Section, image: str, role: Role, runtimes: RuntimeCatalog
) -> Program:
    elsewhere = worker_pool.REDUCERS_ELSEWHERE if role.position != PS_POOL else ""
    runtime = worker_pool.read_runtime(config, "imageUri", image, runtimes, elsewhere)
    if elsewhere and images.is_reduction_server(image):
        return Program(runtime, image)
    command = syntax.read_arguments(config, "containerCommand")
    container_args = syntax.read_arguments(config, "containerArgs")
    args = syntax.read_arguments(training, "args")
    if args and (command or container_args):
        field = "containerArgs" if container_args else "containerCommand"
        config.fault(field, "container_command and container_args cannot be combined with args.")
    if worker_pool.are_reducers(runtime):
        return worker_pool.reducer_program(runtime, image, (), is_chosen=bool(command or container_args))
    program = Program(runtime=runtime, image_uri=image, command=command, args=container_args or args)
    if worker_pool.needs_command(runtime, image) and worker_pool.names_package(program):
        field = "containerArgs" if container_args else "args"
        return worker_pool.read_package(program, config if container_args else training, field)
    packaged = training.is_set("packageUris") or training.is_set("pythonModule")
    if packaged and (command or container_args):
        config.fault(
            "containerCommand" if command else "containerArgs",
            "A job runs its Python package or the image's own program. Omit "
            "container_command and container_args, or package_uris and python_module.",
        )
    if packaged:
        return Program(
            runtime=runtime,
            image_uri=image,
            package_uris=syntax.read_packages(training),
            module=syntax.read_module(training),
            args=args,
        )
    if worker_pool.needs_command(runtime, image) and not command:
        config.fault(
            "containerCommand",
            "An environment of the service replaces this image, and the job specifies no "
            "program. Set container_command, or package_uris and python_module for a "
            "prebuilt image.",
        )
    return program
