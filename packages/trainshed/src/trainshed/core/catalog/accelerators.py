"""Accelerator types, and how many of each go with which machine.

Sources: facts/machines#accelerators and its GPU table, and, for the K80, older tables: the samples of both
services still ask for it.
"""

import functools
from collections.abc import Mapping

from trainshed.core.catalog.machines import MachineType
from trainshed.core.catalog.tables import table
from trainshed.core.names import Api

K80 = "NVIDIA_TESLA_K80"
RETIRED = frozenset({K80})
"""Types that the public services no longer have; a job that asks for one is accepted, with a notice."""
_PODS: Mapping[str, tuple[str, ...]] = {
    "cloud-tpu": ("TPU_V2", "TPU_V3"),
    "cloud_tpu": ("TPU_V2_POD", "TPU_V3_POD"),
}
"""Types that may be asked for in pods, by the machine type of either API."""
_TPU_BOARD = 8
_TPU_POD_STEP = 32
_TPU_DEVICES: Mapping[str, str] = {"ct5lp": "TPU_V5_LITEPOD"}
"""Accelerator type that a request may name with a TPU machine family, besides the machine."""
FLEX_START_TYPES = frozenset(
    {
        "NVIDIA_L4",
        "NVIDIA_TESLA_A100",
        "NVIDIA_A100_80GB",
        "NVIDIA_H100_80GB",
        "NVIDIA_H100_MEGA_80GB",
        "NVIDIA_H200_141GB",
        "NVIDIA_B200",
    }
)
"""Types that the FLEX_START strategy may use (facts/lifecycle#scheduling)."""


def accelerator_types(api: Api) -> tuple[str, ...]:
    """Return the public enum names of `api`, without the unspecified one."""
    return tuple(table("accelerators")["types"][api.value])


def allowed(machine: MachineType, api: Api) -> Mapping[str, tuple[int, ...]]:
    """Return the accelerator types that go with `machine`, each with its counts; a TPU's pod sizes are left
    out."""
    return _allowed(machine.name, api)


@functools.cache
def _allowed(name: str, api: Api) -> Mapping[str, tuple[int, ...]]:
    data = table("accelerators")
    if name in ("cloud-tpu", "cloud_tpu"):
        return {"TPU_V2": (_TPU_BOARD,), "TPU_V3": (_TPU_BOARD,)}
    if name in data["tpuChipsPerVm"]:
        device = _TPU_DEVICES.get(name.split("-", maxsplit=1)[0])
        return {device: (data["tpuChipsPerVm"][name],)} if device else {}
    known = set(accelerator_types(api))
    by_type = {
        accelerator: tuple(counts)
        for accelerator, counts in data["counts"].get(name, {}).items()
        if accelerator in known
    }
    if name in data["k80"]:
        by_type[K80] = tuple(data["k80"][name])
    return by_type


def count_is_allowed(machine: MachineType, accelerator: str, count: int, api: Api) -> bool:
    """Whether `count` devices of `accelerator` go with `machine`, including TPU pods of 32 and more."""
    if count in allowed(machine, api).get(accelerator, ()):
        return True
    return (
        accelerator in _PODS.get(machine.name, ())
        and count >= _TPU_POD_STEP
        and count % _TPU_POD_STEP == 0
    )


def tpu_topologies(machine: MachineType) -> Mapping[str, int]:
    """Return the number of hosts by topology, for a TPU machine that is chosen by topology; else nothing."""
    return table("accelerators")["tpuTopologies"].get(machine.name, {})
