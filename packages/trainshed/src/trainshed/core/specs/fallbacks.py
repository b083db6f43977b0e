"""Fall-backs of a job: its labels name other machine types and regions, which become the choices of its spec,
in that order (spec/queue#fall-backs)."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Final

from msgspec.structs import replace

from trainshed.core.catalog import accelerators
from trainshed.core.catalog.machines import MachineType, closest, machine_types
from trainshed.core.catalog.regions import regions
from trainshed.core.job.spec import Accelerators, Choice, JobSpec, Machine
from trainshed.core.requests import Faults
from trainshed.core.specs.machines import (
    accelerator_faults,
    machine_named,
    resolve,
    unknown_machine,
)

REGIONS: Final = "trainshed-fallback-regions"
"""Label of a job: regions, with `_` between them."""
MACHINE_TYPES: Final = "trainshed-fallback-machine-types"
"""Label of a job: machine types, with `_` between them."""
AFTER: Final = "trainshed-fallback-after"
"""Label of a job: whole seconds that it waits before it takes another choice."""
DEFAULT_AFTER: Final = 300
_SECOND: Final = 10**9


def with_fallbacks(spec: JobSpec, labels: Iterable[tuple[str, str]]) -> JobSpec:
    """Return the spec with the choices that a job's labels give it. Raise InvalidRequest with everything that
    is wrong with those labels."""
    values = dict(labels)
    if values.keys().isdisjoint((REGIONS, MACHINE_TYPES, AFTER)):
        return spec
    faults = Faults()
    places = [spec.region, *_regions(spec, values, faults)]
    machines = [
        tuple(pool.machine for pool in spec.pools),
        *_machines(spec, values, faults),
    ]
    after = values.get(AFTER, str(DEFAULT_AFTER))
    if not (after.isascii() and after.isdecimal() and len(after) <= len("31536000")):
        faults.add(
            f"labels.{AFTER}",
            f"{after!r} is not a whole number of seconds, such as {DEFAULT_AFTER}.",
        )
    elif AFTER in values and REGIONS not in values and MACHINE_TYPES not in values:
        faults.add(
            f"labels.{AFTER}", f"It says nothing without the label {REGIONS} or {MACHINE_TYPES}."
        )
    faults.refuse()
    choices = tuple(Choice(region, some) for region, some in product(places, machines))
    if len(choices) == 1:
        return spec
    return replace(spec, choices=choices, patience=int(after) * _SECOND)


def _named(values: Mapping[str, str], label: str) -> list[str]:
    text = values.get(label)
    return text.split("_") if text is not None else []


def _regions(spec: JobSpec, values: Mapping[str, str], faults: Faults) -> Iterator[str]:
    known = regions(spec.api)
    names = _named(values, REGIONS)
    for name in names:
        if name not in known:
            text = f"There is no region {name!r}.{closest(name, known)} Put one _ between regions."
            faults.add(f"labels.{REGIONS}", text)
        elif name == spec.region or names.count(name) > 1:
            faults.add(
                f"labels.{REGIONS}", f"The region {name} is named twice, or is the job's own."
            )
        else:
            yield name


def _machines(
    spec: JobSpec, values: Mapping[str, str], faults: Faults
) -> Iterator[tuple[Machine, ...]]:
    """Yield, for each named machine type, the machines of all pools: the pools that have the first pool's
    type get the named one."""
    names = _named(values, MACHINE_TYPES)
    first = spec.pools[0].machine.type
    for name in names:
        machine = machine_named(name, spec.api)
        if machine is None:
            text = f"{unknown_machine(name, spec.api)} Put one _ between machine types."
            faults.add(f"labels.{MACHINE_TYPES}", text)
            continue
        if name == first or names.count(name) > 1:
            text = f"The machine type {name} is named twice, or is the first pool's own."
            faults.add(f"labels.{MACHINE_TYPES}", text)
            continue
        pool_machines: list[Machine] = []
        for pool in spec.pools:
            if pool.machine.type != first:
                pool_machines.append(pool.machine)
                continue
            devices, fault = _devices(machine, pool.machine, spec)
            if fault:
                faults.add(f"labels.{MACHINE_TYPES}", fault)
            pool_machines.append(resolve(machine, devices))
        yield tuple(pool_machines)


def _devices(
    machine: MachineType, wanted: Machine, spec: JobSpec
) -> tuple[Accelerators | None, str]:
    """Return a pool's accelerators on another machine, and what is wrong with them. They are the pool's own;
    where those do not go with the machine, the machine's, if it comes with one kind and number only."""
    own = None if machine_types()[wanted.type].is_legacy else wanted.accelerators
    wrong = accelerator_faults(machine, own.type if own else "", own.count if own else 0, spec.api)
    if not any(wrong):
        return own, ""
    choices = [
        Accelerators(name, count)
        for name, counts in accelerators.allowed(machine, spec.api).items()
        for count in counts
    ]
    if machine.needs_accelerators and len(choices) == 1:
        return choices[0], ""
    return own, " ".join(filter(None, wrong))
