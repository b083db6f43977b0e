"""Pools of an `ml` v1 job: scale tier, machines, counts, accelerators, disks, and the programs
(spec/submit#ml-jobs).
"""

from collections.abc import Sequence

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
from trainshed.core.runtime import RuntimeCatalog, RuntimeChoice, RuntimeRefusal
from trainshed.core.specs import machines, reducers, syntax
from trainshed.core.specs.entry_points import names_package, needs_command, read_package


class Role(Struct, frozen=True):
    """One of the four roles: its pool position and the fields that describe it ("" = no such field)."""

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
    """The machines and disk of one role that has replicas."""

    role: Role
    count: int
    machine: Machine
    disk: Disk


def read_hardware(training: Section) -> tuple[Hardware, ...]:
    """Read the machines of every role that has replicas, ascending by position. What is wrong is reported to
    the section's faults."""
    tier = training.text("scaleTier") or DEFAULT_TIER
    if tier == CUSTOM_TIER:
        return _custom(training)
    pools = predefined_tiers().get(tier)
    if pools is None:
        known = ", ".join((*predefined_tiers(), CUSTOM_TIER))
        hint = f" {machines.NO_TPU}" if "TPU" in tier else ""
        training.fault("scaleTier", f"{tier!r} is not a scale tier here; choose {known}.{hint}")
        return ()
    _refuse_explicit(training, tier)
    return tuple(
        Hardware(
            role=ROLES[pool.position],
            count=pool.count,
            machine=machines.resolve(
                machine_types()[pool.machine_type],
                Accelerators(pool.accelerator_type, pool.accelerator_count)
                if pool.accelerator_type
                else None,
            ),
            disk=_disk(training.section(ROLES[pool.position].config_field)),
        )
        for pool in pools
    )


def _refuse_explicit(training: Section, tier: str) -> None:
    """Refuse machine types, counts and accelerators beside a predefined tier, which sets them all."""
    for role in ROLES:
        for name in (role.type_field, role.count_field):
            if name and training.is_set(name):
                training.fault(
                    name,
                    f"Scale tier {tier} sets the machines itself; leave this out or use scale tier CUSTOM.",
                )
        config = training.section(role.config_field)
        if config.is_set("acceleratorConfig"):
            config.fault(
                "acceleratorConfig",
                f"Scale tier {tier} sets the accelerators itself; leave this out or use scale tier CUSTOM.",
            )


def _custom(training: Section) -> tuple[Hardware, ...]:
    hardware: list[Hardware] = []
    for role in ROLES:
        count = _count(training, role)
        name = training.text(role.type_field)
        if not name:
            if role.position == 0:
                training.fault(
                    "masterType", "The master's machine type is needed with scale tier CUSTOM."
                )
            elif (how_many := training.integer(role.count_field)) > 0:
                training.fault(
                    role.type_field,
                    f"{training.at(role.count_field)} is {how_many}, so its type is needed.",
                )
            continue
        machine = machines.machine_named(name, Api.ML)
        if machine is None:
            training.fault(role.type_field, machines.unknown_machine(name, Api.ML))
            continue
        if not count:
            continue
        config = training.section(role.config_field)
        devices = _accelerators(config, machine)
        hardware.append(Hardware(role, count, machines.resolve(machine, devices), _disk(config)))
    return tuple(hardware)


def _count(training: Section, role: Role) -> int:
    if not role.count_field:
        return 1
    count = training.integer(role.count_field)
    if not 0 <= count <= machines.MAX_REPLICAS:
        training.fault(
            role.count_field, f"The count must be 0 to {machines.MAX_REPLICAS}, not {count}."
        )
        return 1
    return count


def _accelerators(config: Section, machine: MachineType) -> Accelerators | None:
    section = config.section("acceleratorConfig")
    kind, count = section.enum("type"), section.integer("count")
    if machine.is_legacy and (kind or count):
        config.fault(
            "acceleratorConfig",
            f"Machine type {machine.name} has its accelerators built in or none; use a Compute Engine "
            "type such as n1-standard-8 to choose them.",
        )
        return None
    type_fault, count_fault = machines.accelerator_faults(machine, kind, count, Api.ML)
    if type_fault:
        section.fault("type", type_fault)
    if count_fault:
        section.fault("count", count_fault)
    return Accelerators(kind, count) if kind else None


def _disk(config: Section) -> Disk:
    return machines.read_disk(config.section("diskConfig"), Api.ML)


_UNKNOWN_RUNTIME = RuntimeChoice("", "", "")
_CONTAINER_FIELDS = ("imageUri", "containerCommand", "containerArgs")


class Programs(Struct, frozen=True):
    """What each role runs, by pool position, and the runtime version as given ("" = none)."""

    by_position: dict[int, Program]
    runtime_version: str


def read_programs(training: Section, roles: Sequence[Role], runtimes: RuntimeCatalog) -> Programs:
    """Read the programs of `roles`. What is wrong is reported to the section's faults."""
    version = training.text("runtimeVersion")
    image = training.section("masterConfig").text("imageUri")
    if version and image:
        training.fault(
            "runtimeVersion",
            "Only one of runtime_version and master_config.image_uri can be set; leave one out.",
        )
    if image:
        return Programs(_containers(training, image, roles, runtimes), "")
    return Programs(
        dict.fromkeys((r.position for r in roles), _package(training, runtimes)), version
    )


def _package(training: Section, runtimes: RuntimeCatalog) -> Program:
    """Read the package job that every role runs, on the runtime version or on the default runtime."""
    version, python = training.text("runtimeVersion"), training.text("pythonVersion")
    runtime = _UNKNOWN_RUNTIME
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
        config = training.section(role.config_field)
        for field in _CONTAINER_FIELDS:
            if config.is_set(field):
                config.fault(
                    field,
                    "Containers need master_config.image_uri, which takes the place of a runtime.",
                )
    packages = syntax.read_packages(training)
    module = _module(training)
    return Program(
        runtime=runtime,
        package_uris=packages,
        module=module,
        args=syntax.read_arguments(training, "args"),
    )


def _containers(
    training: Section, master_image: str, roles: Sequence[Role], runtimes: RuntimeCatalog
) -> dict[int, Program]:
    if training.text("pythonVersion"):
        training.fault(
            "pythonVersion", "A Python version goes with a runtime version, not with an image."
        )
    programs: dict[int, Program] = {}
    for role in roles:
        config = training.section(role.config_field)
        # Roles without an image of their own run the master's (facts/program#arguments).
        image = config.text("imageUri") or master_image
        if images.is_reduction_server(image) and role.position != PS_POOL:
            config.fault("imageUri", reducers.ELSEWHERE)
            programs[role.position] = Program(_UNKNOWN_RUNTIME, image)
        else:
            programs[role.position] = _container(training, config, image, runtimes)
    return programs


def _container(training: Section, config: Section, image: str, runtimes: RuntimeCatalog) -> Program:
    runtime = _UNKNOWN_RUNTIME
    if not images.is_reference(image):
        config.fault("imageUri", f"{image!r} {images.NO_REFERENCE}")
    else:
        answer = runtimes.for_image(image)
        if isinstance(answer, RuntimeRefusal):
            config.fault("imageUri", answer.reason)
        else:
            runtime = answer
    command = syntax.read_arguments(config, "containerCommand")
    container_args = syntax.read_arguments(config, "containerArgs")
    args = syntax.read_arguments(training, "args")
    if args and (command or container_args):
        field = "containerArgs" if container_args else "containerCommand"
        config.fault(field, "container_command and container_args cannot be combined with args.")
    if reducers.are_ours(runtime):
        return reducers.program(runtime, image, (), is_chosen=bool(command or container_args))
    program = Program(
        runtime=runtime, image_uri=image, command=command, args=container_args or args
    )
    if needs_command(runtime, image) and names_package(program):
        field = "containerArgs" if container_args else "args"
        return read_package(program, config if container_args else training, field)
    packaged = training.is_set("packageUris") or training.is_set("pythonModule")
    if packaged and (command or container_args):
        config.fault(
            "containerCommand" if command else "containerArgs",
            "A job runs its Python package or the image's own program; leave out container_command and "
            "container_args, or package_uris and python_module.",
        )
    if packaged:
        return Program(
            runtime=runtime,
            image_uri=image,
            package_uris=syntax.read_packages(training),
            module=_module(training),
            args=args,
        )
    if needs_command(runtime, image) and not command:
        config.fault(
            "containerCommand",
            "An environment of the service stands for this image, and needs a program: give a "
            "container_command, or for a prebuilt image package_uris and python_module.",
        )
    return program


def _module(training: Section) -> str:
    module = training.text("pythonModule")
    if fault := syntax.module_fault(module):
        training.fault("pythonModule", fault)
    return module
