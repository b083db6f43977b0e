"""Machines of an `ml` v1 job: scale tier, types, counts, accelerators, disks (spec/submit#ml-jobs,
facts/machines#tiers)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from trainshed.core.catalog import tiers
from trainshed.core.catalog.machines import MachineType, machine_types
from trainshed.core.job.spec import Accelerators, Disk, Machine
from trainshed.core.names import Api
from trainshed.core.requests import Section
from trainshed.core.specs import machines

CLOUD_TPU = "cloud_tpu"


@dataclass(frozen=True, slots=True)
class Role:
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


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one role runs on. Roles without replicas have none."""

    role: Role
    count: int
    machine: Machine
    disk: Disk


def read_hardware(training: Section) -> tuple[Hardware, ...]:
    """The machines of every role that has replicas, ascending by position. Faults go to the section."""
    tier = training.text("scaleTier") or tiers.DEFAULT
    if tier == tiers.CUSTOM:
        return _merge_tpu(_custom(training))
    pools = tiers.predefined_tiers().get(tier)
    if pools is None:
        known = ", ".join((*tiers.predefined_tiers(), tiers.CUSTOM))
        training.fault("scaleTier", f"{tier!r} is not a scale tier; choose {known}.")
        return ()
    _refuse_explicit(training, tier)
    return _merge_tpu(
        tuple(
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
    )


def _refuse_explicit(training: Section, tier: str) -> None:
    """A predefined tier says everything about machines; nothing else may."""
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
    found: list[Hardware] = []
    types: dict[str, MachineType] = {}
    for role in ROLES:
        count = _count(training, role)
        name = training.text(role.type_field)
        if not name:
            if role.position == 0:
                training.fault(
                    "masterType", "The master's machine type is needed with scale tier CUSTOM."
                )
            elif (asked := training.integer(role.count_field)) > 0:
                training.fault(
                    role.type_field,
                    f"{training.at(role.count_field)} is {asked}, so its type is needed.",
                )
            continue
        machine = machines.machine_named(name, Api.ML)
        if machine is None:
            training.fault(role.type_field, machines.unknown_machine(name, Api.ML))
            continue
        if name == CLOUD_TPU and role.position != 1:
            training.fault(role.type_field, "cloud_tpu is a machine type for workers only.")
            continue
        if not count:
            continue
        types[role.type_field] = machine
        config = training.section(role.config_field)
        devices = _accelerators(config, machine)
        found.append(Hardware(role, count, machines.resolve(machine, devices), _disk(config)))
    _check_category(training, types)
    return tuple(found)


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


def _check_category(training: Section, types: Mapping[str, MachineType]) -> None:
    """All machine types are legacy or all are Compute Engine's; cloud_tpu goes with both."""
    categorised = {field: m for field, m in types.items() if m.name != CLOUD_TPU}
    if len({machine.is_legacy for machine in categorised.values()}) < 2:
        return
    first, *others = categorised
    for field in others:
        if categorised[field].is_legacy != categorised[first].is_legacy:
            training.fault(
                field,
                f"{categorised[field].name} cannot go with {categorised[first].name}: all machine types "
                "of a job are either legacy types or Compute Engine types.",
            )


def _accelerators(config: Section, machine: MachineType) -> Accelerators | None:
    given = config.section("acceleratorConfig")
    kind, count = given.enum("type"), given.integer("count")
    if machine.is_legacy and machine.name != CLOUD_TPU and (kind or count):
        config.fault(
            "acceleratorConfig",
            f"Machine type {machine.name} has its accelerators built in or none; use a Compute Engine "
            "type such as n1-standard-8 to choose them.",
        )
        return None
    if machine.name == CLOUD_TPU and not kind and not count:
        return None
    type_fault, count_fault = machines.accelerator_faults(machine, kind, count, Api.ML)
    if type_fault:
        given.fault("type", type_fault)
    if count_fault:
        given.fault("count", count_fault)
    return Accelerators(kind, count) if kind else None


def _disk(config: Section) -> Disk:
    return machines.read_disk(config.section("diskConfig"), Api.ML)


def _merge_tpu(found: tuple[Hardware, ...]) -> tuple[Hardware, ...]:
    """A cloud_tpu worker is a device of the master, not a machine that runs the program
    (facts/program#tf_config)."""
    tpu = next((hardware for hardware in found if hardware.machine.type == CLOUD_TPU), None)
    if tpu is None:
        return found
    return tuple(
        Hardware(hw.role, hw.count, _with_devices(hw.machine, tpu.machine.accelerators), hw.disk)
        if hw.role.position == 0
        else hw
        for hw in found
        if hw is not tpu
    )


def _with_devices(machine: Machine, devices: Accelerators | None) -> Machine:
    return dataclasses.replace(machine, accelerators=machine.accelerators or devices)
