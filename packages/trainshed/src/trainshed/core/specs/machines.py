"""The machine, accelerators and disk of one pool, and which of them go together, for both public APIs."""

from collections.abc import Iterable

from trainshed.core.catalog import machines
from trainshed.core.catalog.machines import MachineType
from trainshed.core.errors import closest
from trainshed.core.job import Accelerators, Disk, Machine
from trainshed.core.names import Api
from trainshed.core.requests import Section

DISK_TYPES = {
    Api.VERTEX: ("pd-ssd", "pd-standard", "hyperdisk-balanced"),
    Api.ML: ("pd-ssd", "pd-standard"),
}
HYPERDISK_MACHINES = frozenset({"a3-ultragpu-8g", "a4-highgpu-8g"})
"""Machines whose disk is hyperdisk-balanced unless the job says otherwise (facts/machines#disks)."""
MIN_DISK_GB = 100
MAX_DISK_GB = 64_000
MAX_REPLICAS = 2_000
"""Limit of one pool: bounds what a mistyped count can cost."""


NO_TPU = "This service has no TPUs: choose machines with GPUs, or without any."


def read_type(section: Section, field: str, api: Api) -> MachineType | None:
    """Read the name of a machine type that a request to `api` may name; None for another, which is reported
    in the public words (facts/limits#error-texts)."""
    name = section.text(field)
    kind = machines.machine_types().get(name)
    if kind is not None and api in kind.apis:
        return kind
    names = (machine.name for machine in machines.named_in(api))
    near = closest(name, names) or " trainshed machine-types lists those that are."
    if name.startswith(("cloud-tpu", "cloud_tpu", "ct", "tpu")):
        near = f" {NO_TPU}"
    section.fault(field, f"Machine type {name} is not supported.{near}")
    return None


def resolve(machine: MachineType, devices: Accelerators | None = None) -> Machine:
    """Return the pool's machine of a type, with its sizes. A legacy type brings its own accelerators."""
    if devices is None and machine.accelerator_type:
        devices = Accelerators(machine.accelerator_type, machine.accelerator_count)
    memory, limit = machine.memory_bytes, machine.memory_limit_bytes
    return Machine(machine.name, machine.vcpus, memory, limit, devices)


def read_accelerators(
    section: Section, fields: tuple[str, str], machine: MachineType, api: Api
) -> Accelerators | None:
    """Read the type and the count of accelerators, and whether they go with the machine."""
    (type_field, count_field), allowed = fields, machines.allowed(machine, api)
    kind, count = section.enum(type_field), section.integer(count_field)
    choices = "; ".join(f"{name} x {_either(counts)}" for name, counts in allowed.items())
    if not kind and count:
        section.fault(
            count_field, "An accelerator count is given without an accelerator type; give both."
        )
    elif not kind and machine.needs_accelerators:
        section.fault(
            type_field, f"Machine type {machine.name} needs its accelerators named: {choices}."
        )
    elif kind and kind not in allowed:
        hint = f"It goes with {choices}." if choices else "It takes no accelerators."
        text = f'Accelerator "{kind}" is not supported for machine type "{machine.name}". {hint}'
        section.fault(type_field, text)
    elif kind and count not in allowed[kind]:
        wrong = (
            f'Accelerator count {count} of "{kind}" is not supported for machine type "{machine.name}"'
            if count > 0
            else f"The number of {kind} accelerators must be given"
        )
        section.fault(count_field, f"{wrong}; use {_either(allowed[kind])}.")
    return Accelerators(kind, count) if kind else None


def default_disk(machine_type: str) -> Disk:
    """Return the disk of a machine whose job names none."""
    return Disk("hyperdisk-balanced") if machine_type in HYPERDISK_MACHINES else Disk()


def read_disk(section: Section, api: Api, machine_type: str = "") -> Disk:
    """Read `bootDiskType` and `bootDiskSizeGb` of a disk spec, defaults filled in (spec/machines#disk,
    facts/machines#disks)."""
    default = default_disk(machine_type)
    disk_type = section.text("bootDiskType") or default.type
    size = section.integer("bootDiskSizeGb") or default.size_gb
    if disk_type not in DISK_TYPES[api]:
        section.fault(
            "bootDiskType",
            f"{disk_type!r} is not a disk type; choose {' or '.join(DISK_TYPES[api])}.",
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
