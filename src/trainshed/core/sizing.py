"""Whether a smaller machine would have done: hints about machines and GPUs that were asked for and hardly
used. Pure."""

from collections.abc import Iterable

from msgspec import Struct

from trainshed.core.catalog.machines import GIB, MachineType, machine_types, named_in
from trainshed.core.job.spec import Machine
from trainshed.core.names import Api
from trainshed.core.units import Bytes

_FAR_BELOW = 4
"""There is a hint only if at most one fourth of the available memory was used."""
_MARGIN = 1.25
"""Margin of memory and of processors above the most that was used."""
_SATURATED = 0.8
"""A replica that used this share of all the processors of its host might have used more."""
_LEAST_SECONDS = 60.0
"""Shorter runs give no hint."""


class Used(Struct, frozen=True):
    """The most that one replica used."""

    #: Bytes of memory.
    memory: Bytes
    #: Processors at work at once.
    cpus: float
    #: Processors of its host; 0 = not known.
    host_cpus: int
    #: How long it was measured.
    seconds: float
    #: For each of its GPUs, the share of the time that it was at work; None = not known.
    gpus: tuple[float | None, ...] = ()


def hints(api: Api, machine: Machine, replicas: Iterable[Used]) -> tuple[str, ...]:
    """Return one sentence for each thing that the replicas of a pool had no use for; () if there is none, or
    if they ran too short a time to tell."""
    told = [used for used in replicas if used.seconds >= _LEAST_SECONDS]
    if not told:
        return ()
    found: list[str] = []
    if smaller := _smaller(api, machine, told):
        cpus, memory = max(used.cpus for used in told), max(used.memory for used in told)
        found.append(
            f"It asked for {machine.type} ({machine.vcpus:g} vCPUs, {_gib(machine.memory_bytes)}) and used"
            f" {cpus:.1f} vCPUs and {_gib(memory)} at most: {smaller.name} ({smaller.vcpus:g} vCPUs,"
            f" {_gib(smaller.memory_bytes)}) would do."
        )
    devices = machine.accelerators
    gpus = [busy for used in told for busy in used.gpus]
    if devices is not None and gpus and all(busy == 0.0 for busy in gpus):
        found.append(
            f"It asked for {devices.count} {devices.type} on each replica, and no GPU was ever at work."
        )
    return tuple(found)


def _smaller(api: Api, machine: Machine, replicas: list[Used]) -> MachineType | None:
    """Return the smallest machine of the same series that would have done; None if there is no smaller one,
    or if that cannot be told. Machines with accelerators get no hint: which of these go together is another
    question."""
    asked = machine_types().get(machine.type)
    memory = max(used.memory for used in replicas)
    if asked is None or asked.is_legacy or machine.accelerators is not None:
        return None
    if not machine.memory_limit_bytes or memory * _FAR_BELOW > machine.memory_limit_bytes:
        return None
    cpus = max(_needed(used, machine.vcpus) for used in replicas)
    enough = [
        kind
        for kind in named_in(api)
        if kind.name.partition("-")[0] == machine.type.partition("-")[0]
        and not kind.needs_accelerators
        and cpus <= kind.vcpus <= machine.vcpus
        and memory * _MARGIN <= kind.memory_limit_bytes
        and kind.memory_bytes <= machine.memory_bytes
    ]
    best = min(enough, key=lambda kind: (kind.vcpus, kind.memory_bytes), default=None)
    return None if best is None or best.name == machine.type else best


def _needed(used: Used, asked: float) -> float:
    short = used.host_cpus and used.host_cpus < asked
    if short and used.cpus >= _SATURATED * used.host_cpus:
        return asked
    return min(asked, used.cpus * _MARGIN)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
