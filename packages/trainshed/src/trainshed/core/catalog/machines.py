"""Machine types: size, usable memory, price in ML units, and the accelerators that each type supports.

Source: facts/machines#accelerators; for the K80 older tables, since the samples of both services still ask
for it. Published gigabytes are GiB. TPUs are left out: no node has any.
"""

import functools
from collections.abc import Iterable, Mapping

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
    #: Memory limit of a replica on this machine (`_memory_limit`).
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
            TierPool(
                position=position,
                machine_type=machine,
                count=count,
                accelerator_type=accelerator,
                accelerator_count=devices or 0,
            )
            for position, machine, count, accelerator, devices in pools
        )
        for name, pools in table("tiers")["tiers"].items()
    }


MINUTE = 60 * 10**9
_MINIMUM_NODE_MINUTES = 10
_BASE_MACHINE = "n1-standard-4"
_BASE_ACCELERATOR = "NVIDIA_TESLA_V100"


def units_per_hour(
    machine_type: str, accelerator_type: str = "", accelerator_count: int = 0
) -> float:
    """Return the ML units that one node costs per hour (facts/machines#ml-units). A legacy type's price
    includes its accelerators. Types that are not in the price list count as n1-standard vCPUs and V100s.
    """
    data = table("ml_units")
    if machine_type in data["legacy"]:
        return data["legacy"][machine_type]
    prices, machine = data["computeEngine"], machine_types().get(machine_type)
    vcpus = machine.vcpus if machine is not None else 0
    per_vcpu = prices[_BASE_MACHINE] / machine_types()[_BASE_MACHINE].vcpus
    devices = data["accelerators"].get(accelerator_type, data["accelerators"][_BASE_ACCELERATOR])
    return prices.get(machine_type, vcpus * per_vcpu) + devices * accelerator_count


def consumed_units(nodes: Iterable[float], running: int) -> float:
    """Return the ML units of a job, as `ml` v1 reports them. Its `nodes` (units per hour) ran for `running`
    nanoseconds.

    Started minutes count as whole minutes, with a minimum of ten node-minutes per job. The sum is rounded to
    two decimals, like the public service's.
    """
    rates = list(nodes)
    minutes = -(-max(running, 0) // MINUTE)
    node_minutes = minutes * len(rates)
    if node_minutes == 0:
        return 0.0
    units = sum(rates) * minutes / 60
    return round(units * max(1.0, _MINIMUM_NODE_MINUTES / node_minutes), 2)


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
