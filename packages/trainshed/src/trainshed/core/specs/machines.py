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


def unknown_machine(name: str, api: Api) -> str:
    """Return the public words for a machine type that `api` does not have (facts/limits#error-texts)."""
    if name.startswith(("cloud-tpu", "cloud_tpu", "ct", "tpu")):
        return f"Machine type {name} is not supported. {NO_TPU}"
    names = (machine.name for machine in machines.named_in(api))
    near = closest(name, names) or " trainshed machine-types lists those that are."
    return f"Machine type {name} is not supported.{near}"


def machine_named(name: str, api: Api) -> MachineType | None:
    """Return the machine type of that name if a request to `api` may name it."""
    kind = machines.machine_types().get(name)
    return kind if kind is not None and api in kind.apis else None


def resolve(machine: MachineType, devices: Accelerators | None = None) -> Machine:
    """Return the pool's machine of a type, with its sizes. A legacy type brings its own accelerators."""
    if devices is None and machine.accelerator_type:
        devices = Accelerators(machine.accelerator_type, machine.accelerator_count)
    return Machine(
        type=machine.name,
        vcpus=machine.vcpus,
        memory_bytes=machine.memory_bytes,
        memory_limit_bytes=machine.memory_limit_bytes,
        accelerators=devices,
    )


def accelerator_faults(
    machine: MachineType, accelerator: str, count: int, api: Api
) -> tuple[str, str]:
    """Return what is wrong with the accelerator's type and with its count on `machine`; "" = nothing."""
    allowed = machines.allowed(machine, api)
    choices = "; ".join(f"{name} x {_either(counts)}" for name, counts in allowed.items())
    if not accelerator and count:
        return "An accelerator count is given without an accelerator type; give both.", ""
    if not accelerator and machine.needs_accelerators:
        return f"Machine type {machine.name} needs its accelerators named: {choices}.", ""
    if not accelerator or count in allowed.get(accelerator, ()):
        return "", ""
    if accelerator not in allowed:
        hint = f"It goes with {choices}." if choices else "It takes no accelerators."
        return (
            f'Accelerator "{accelerator}" is not supported for machine type "{machine.name}". {hint}',
            "",
        )
    wanted = f"use {_either(allowed[accelerator])}"
    if count <= 0:
        return "", f"The number of {accelerator} accelerators must be given; {wanted}."
    return "", (
        f'Accelerator count {count} of "{accelerator}" is not supported for machine type '
        f'"{machine.name}"; {wanted}.'
    )


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
