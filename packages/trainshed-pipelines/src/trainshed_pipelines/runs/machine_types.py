"""Chooses the machine type of a task from the resources that its container requests. Pure."""

import math
from typing import Any, Final

from trainshed.core.catalog.machines import (
    MachineType,
    accelerator_types,
    allowed_accelerators,
    machine_types,
    requestable_types,
)
from trainshed.core.names import Api
from trainshed_pipelines.template.structures import Resources

DEFAULT_MACHINE: Final = "e2-standard-4"
"""The machine type of tasks that request no resources (facts/pipelines#machines)."""
_FAMILIES: Final = ("e2-", "n1-", "n2-", "a2-", "a3-", "g2-")
"""Families that are searched, in this order of preference for machines of the same size."""
_UNITS: Final = {
    "": 1.0,
    "m": 1e-3,
    **{unit: 1000.0**power for power, unit in enumerate("KMGTPE", 1)},
    **{f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", 1)},
}
"""Factors of the units of Kubernetes quantities."""


class ResourceError(ValueError):
    """Requested resources are invalid, or no machine type has them. The message is a sentence."""


def parse_quantity(text: str) -> float:
    """Return a Kubernetes quantity such as `2`, `500m`, `4G` or `16Gi`. Raises ResourceError."""
    number = text.rstrip("KMGTPEim")
    try:
        value = float(number) * _UNITS[text[len(number) :]]
    except (ValueError, KeyError):
        value = -1.0
    if not 0 <= value < math.inf:
        raise ResourceError(f"{text!r} is not an amount such as 2, 500m, 4G or 16Gi.")
    return value


def machine_spec(resources: Resources) -> dict[str, Any]:
    """Return the `machineSpec` of the smallest machine type with these resources, in public JSON. A limit
    counts more than a request. Raises ResourceError."""
    cpus = parse_quantity(resources.cpu_limit or resources.cpu_request or "0")
    memory = parse_quantity(resources.memory_limit or resources.memory_request or "0")
    kind = _accelerator(resources.accelerator_type) if resources.accelerator_type else ""
    count = int(parse_quantity(resources.accelerator_count or "1")) if kind else 0
    if not (cpus or memory or count):
        return {"machineType": DEFAULT_MACHINE}
    fitting = [
        machine
        for machine in requestable_types(Api.VERTEX)
        if machine.vcpus >= cpus
        and machine.memory_bytes >= memory
        and machine.name.startswith(_FAMILIES)
        and _offers(machine, kind, count)
    ]
    if not fitting:
        devices = f", {count} {kind}" if count else ""
        raise ResourceError(
            f"No machine type has {cpus:g} CPUs and {memory / 2**30:g} GiB of memory{devices}. Request less "
            "with set_cpu_limit and set_memory_limit of the task."
        )
    best = min(fitting, key=lambda machine: (machine.vcpus, machine.memory_bytes, _rank(machine)))
    spec: dict[str, Any] = {"machineType": best.name}
    return {**spec, "acceleratorType": kind, "acceleratorCount": count} if count else spec


def _accelerator(text: str) -> str:
    """Return the public name of an accelerator type. KFP also accepts other spellings, such as
    `nvidia-tesla-t4`."""
    name = text.upper().replace("-", "_")
    known = accelerator_types(Api.VERTEX)
    if name not in known:
        raise ResourceError(
            f"{text!r} is not an accelerator type. Use one of {', '.join(known)} in "
            "set_accelerator_type of the task."
        )
    return name


def _offers(machine: MachineType, kind: str, count: int) -> bool:
    if not count:
        return not machine.needs_accelerators
    return count in allowed_accelerators(machine, Api.VERTEX).get(kind, ())


def _rank(machine: MachineType) -> int:
    return next(i for i, family in enumerate(_FAMILIES) if machine.name.startswith(family))


assert DEFAULT_MACHINE in machine_types()
