"""Machine types: size, usable memory, price in ML units, and the accelerators that each type supports.

Source: facts/machines#accelerators. K80s are from older tables, because samples of both services still
request them. Published gigabytes are GiB. TPUs are omitted, because no node has TPUs.
"""

import functools
from collections.abc import Iterable, Mapping

from msgspec import Struct

from trainshed.core.catalog.tables import table
from trainshed.core.names import Api

GIB = 2**30
EVICTION_RESERVE = 100 * 2**20
"""Number of bytes that must stay free below the memory limit, before a host starts to evict
(spec/machines#memory)."""

_RESERVED = ((4, 25), (4, 20), (8, 10), (112, 6))
"""Tiers of memory: (GiB in the tier, per cent that the platform reserves). Above the last tier, the platform
reserves 2 per cent."""
_RESERVED_ABOVE = 2


class MachineType(Struct, frozen=True):
    """One row of the machine table."""

    name: str
    vcpus: float
    memory_bytes: int
    #: Memory limit in bytes of a replica on this machine, as `_memory_limit` computes it.
    memory_limit_bytes: int
    #: Whether a request must also specify the machine's accelerators.
    needs_accelerators: bool
    #: The APIs whose requests may use the type. Empty for a type that only a scale tier uses.
    apis: frozenset[Api]
    #: Whether the type belongs to the older category of `ml`, in which the name determines the accelerators.
    is_legacy: bool = False
    #: Accelerators of a legacy type, or None if the type has none.
    accelerator_type: str | None = None
    accelerator_count: int = 0
    #: Maximum outgoing bandwidth in Gbit/s, or None if unknown.
    egress_gbps: float | None = None


def _memory_limit(memory_bytes: int) -> int:
    """Return the memory in bytes that remains after the platform's reservation, which depends on the
    machine's memory (spec/machines#memory). 0 if the memory is unknown."""
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
    """Return all known machine types by name, in the order of the table."""
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


def requestable_types(api: Api) -> tuple[MachineType, ...]:
    """Return the machine types that a request to `api` may specify."""
    return tuple(machine for machine in machine_types().values() if api in machine.apis)


CUSTOM_TIER = "CUSTOM"
DEFAULT_TIER = "BASIC"
"""The scale tier of requests that specify no tier. It is the first value of the public enum."""


class TierPool(Struct, frozen=True):
    """One pool of a predefined tier. `accelerator_type` is None for a pool without accelerators."""

    position: int
    machine_type: str
    count: int
    accelerator_type: str | None = None
    accelerator_count: int = 0


@functools.cache
def predefined_tiers() -> dict[str, tuple[TierPool, ...]]:
    """Return the pools of each tier except CUSTOM, by tier name. The pools of a tier ascend by position."""
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


def units_per_hour(machine_type: str, accelerator_type: str = "", accelerator_count: int = 0) -> float:
    """Return the ML units that one node costs per hour (facts/machines#ml-units).

    A legacy type's price includes its accelerators. A machine type that is not in the price list costs as
    much as the same number of n1-standard vCPUs. An accelerator that is not in the list costs as much as a
    V100.
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
    """Return the ML units of a job, as `ml` v1 reports them.

    `nodes` contains the ML units per hour of each node. `running` is the running time of every node in
    nanoseconds. Started minutes count as whole minutes, with a minimum of ten node-minutes per job. The sum
    is rounded to two decimals, as in the public service.
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
"""Accelerator types that the public services have removed. Jobs with such a type are accepted with a
notice."""


def accelerator_types(api: Api) -> tuple[str, ...]:
    """Return the names of accelerator types in the public enum of `api`, without the unspecified value."""
    return tuple(table("accelerators")["types"][api.value])


@functools.cache
def allowed_accelerators(machine: MachineType, api: Api) -> Mapping[str, tuple[int, ...]]:
    """Return the accelerator types that `machine` supports, each with its allowed counts."""
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
