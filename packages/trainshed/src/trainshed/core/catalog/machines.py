"""Machine types: the size of each, how much of its memory a replica may use, and which accelerators go with
it.

Source: facts/machines#accelerators; for the K80 older tables, since the samples of both services still ask
for it. Published gigabytes are GiB. TPUs are left out: no node has any.
"""

import functools
from collections.abc import Mapping

from msgspec import Struct

from trainshed.core.catalog.tables import table
from trainshed.core.names import Api

GIB = 2**30
EVICTION_RESERVE = 100 * 2**20
"""Bytes kept free below the limit at which a host would start to evict (spec/machines#memory)."""

_RESERVED = ((4, 25), (4, 20), (8, 10), (112, 6))
"""(GiB of this tier, per cent of it that the platform keeps); above all tiers 2 per cent."""
_RESERVED_ABOVE = 2


class MachineType(Struct, frozen=True):
    """One row of the machine table."""

    name: str
    vcpus: float
    memory_bytes: int
    #: What a replica on this machine may use (`_memory_limit`).
    memory_limit_bytes: int
    #: A request must name the machine's accelerators as well.
    needs_accelerators: bool
    #: The APIs in which a request may name the type; empty for a type that only a scale tier uses.
    apis: frozenset[Api]
    #: A type of the older `ml` category, whose accelerators, if any, come with the name.
    is_legacy: bool = False
    #: The accelerators of a legacy type; None = it has none.
    accelerator_type: str | None = None
    accelerator_count: int = 0
    #: Largest outgoing bandwidth in Gbit/s; None = unknown.
    egress_gbps: float | None = None


def _memory_limit(memory_bytes: int) -> int:
    """Return what the platform's tiered share leaves of a machine's memory (spec/machines#memory). 0 = it is
    not known."""
    if memory_bytes <= 0:
        return 0
    left, reserved = memory_bytes, 0
    for gib, percent in _RESERVED:
        part = min(left, gib * GIB)
        reserved += part * percent // 100
        left -= part
    reserved += left * _RESERVED_ABOVE // 100
    return max(0, memory_bytes - reserved - EVICTION_RESERVE)


@functools.cache
def machine_types() -> dict[str, MachineType]:
    """Return every known type by name, in the order of the table."""
    data = table("machines")
    types: dict[str, MachineType] = {}
    for section in ("computeEngine", "tierOnly"):
        for name, (vcpus, gib, needs, in_ml, egress) in data[section].items():
            apis = (Api.VERTEX, Api.ML) if in_ml else (Api.VERTEX,)
            types[name] = MachineType(
                name=name,
                vcpus=vcpus,
                memory_bytes=(memory := round(gib * GIB)),
                memory_limit_bytes=_memory_limit(memory),
                needs_accelerators=needs,
                apis=frozenset(apis if section == "computeEngine" else ()),
                egress_gbps=egress,
            )
    for name, (_, vcpus, gib, accelerator, count) in data["legacy"].items():
        types[name] = MachineType(
            name=name,
            vcpus=vcpus,
            memory_bytes=(memory := round(gib * GIB)),
            memory_limit_bytes=_memory_limit(memory),
            needs_accelerators=False,
            apis=frozenset({Api.ML}),
            is_legacy=True,
            accelerator_type=accelerator,
            accelerator_count=count,
        )
    return types


def named_in(api: Api) -> tuple[MachineType, ...]:
    """Return the types that a request to `api` may name."""
    return tuple(machine for machine in machine_types().values() if api in machine.apis)


CUSTOM_TIER = "CUSTOM"
DEFAULT_TIER = "BASIC"
"""The zero value of the enum, which a request without a tier gets."""


class TierPool(Struct, frozen=True):
    """One pool of a predefined tier; `accelerator_type` is None where it has none."""

    position: int
    machine_type: str
    count: int
    accelerator_type: str | None = None
    accelerator_count: int = 0


@functools.cache
def predefined_tiers() -> dict[str, tuple[TierPool, ...]]:
    """Return the pools of every tier except CUSTOM, ascending by position."""
    return {
        name: tuple(
            TierPool(position, machine, count, accelerator, devices or 0)
            for position, machine, count, accelerator, devices in pools
        )
        for name, pools in table("tiers")["tiers"].items()
    }


K80 = "NVIDIA_TESLA_K80"
RETIRED = frozenset({K80})
"""Types that the public services no longer have; a job that asks for one is accepted, with a notice."""


def accelerator_types(api: Api) -> tuple[str, ...]:
    """Return the public enum names of `api`, without the unspecified one."""
    return tuple(table("accelerators")["types"][api.value])


@functools.cache
def allowed(machine: MachineType, api: Api) -> Mapping[str, tuple[int, ...]]:
    """Return the accelerator types that go with `machine`, each with its counts."""
    name = machine.name
    data = table("accelerators")
    known = set(accelerator_types(api))
    by_type = {
        accelerator: tuple(counts)
        for accelerator, counts in data["counts"].get(name, {}).items()
        if accelerator in known
    }
    if name in data["k80"]:
        by_type[K80] = tuple(data["k80"][name])
    return by_type
