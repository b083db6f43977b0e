"""Tests of GPUs: detection by the driver's library, public types and assignment (spec/queue#capacity,
spec/machines#gpus)."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from tests.fake_devices import fake_devices
from trainshed.core.capacity import Node
from trainshed.core.catalog.machines import accelerator_types
from trainshed.core.names import Api
from trainshed.engines.launch import devices
from trainshed.engines.launch.devices import (
    Device,
    Part,
    accelerator_type,
    choose,
    find_devices,
    totals,
    visible,
)
from trainshed.engines.local.machine import share, split
from trainshed.engines.local.options import Declared

GIB = 1 << 30


@pytest.mark.parametrize(
    ("product", "gib", "public"),
    [
        ("NVIDIA H200", 139, "NVIDIA_H200_141GB"),
        ("NVIDIA H100 80GB HBM3", 79, "NVIDIA_H100_80GB"),
        ("NVIDIA A100-SXM4-80GB", 79, "NVIDIA_A100_80GB"),
        ("NVIDIA A100-SXM4-40GB", 39, "NVIDIA_TESLA_A100"),
        ("NVIDIA L4", 22, "NVIDIA_L4"),
        ("Tesla T4", 15, "NVIDIA_TESLA_T4"),
        ("Tesla V100-SXM2-16GB", 16, "NVIDIA_TESLA_V100"),
        ("Tesla P100-PCIE-16GB", 16, "NVIDIA_TESLA_P100"),
        ("Tesla P4", 8, "NVIDIA_TESLA_P4"),
        ("Tesla K80", 11, "NVIDIA_TESLA_K80"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 95, "NVIDIA_RTX_PRO_6000"),
        ("NVIDIA L40S", 45, ""),
        ("NVIDIA H200 MIG 1g.18gb", 16, ""),
        ("NVIDIA GeForce RTX 4090", 24, ""),
    ],
)
def test_gpu_product_name_of_the_driver_is_mapped_to_the_public_gpu_type(
    product: str, gib: int, public: str
) -> None:
    assert accelerator_type(product, gib * GIB) == public


def test_every_detectable_gpu_type_is_a_public_accelerator_type() -> None:
    known = set(accelerator_types(Api.VERTEX))
    table = devices._TYPES  # pyright: ignore[reportPrivateUsage] - the whole of it
    assert {accelerator for *_, accelerator in table} <= known


def test_gpus_of_the_right_type_and_least_use_are_assigned_first() -> None:
    gpus = fake_devices("NVIDIA L4", "Tesla T4", "Tesla T4")
    assert choose(gpus, 1, "NVIDIA_TESLA_T4", ["1", None, ""]) == "2"
    assert choose(gpus, 3, "NVIDIA_TESLA_T4", ["1,2"]) == "0,1,2"
    assert choose(gpus, 1, "NVIDIA_L4", ["0"]) == "0"


def test_gpus_outside_cuda_visible_devices_of_the_service_are_not_used() -> None:
    gpus = fake_devices("Tesla T4", "Tesla T4", "Tesla T4")
    assert visible(gpus, None) == gpus
    assert visible(gpus, "2,0") == (gpus[2], gpus[0])
    assert visible(gpus, "GPU-00000001,9,0") == (gpus[1],)
    assert visible(gpus, "") == visible(gpus, "-1") == ()


LIBRARY = "libc.so.6"
"""A loadable library in place of the driver's."""


class Nvml(ModuleType):
    """A simulated binding of the driver's library, with two GPUs. The second GPU is divided into one part."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception): ...

    def __init__(self, *, driver: bool = True) -> None:
        super().__init__("pynvml")
        self._driver = driver
        self.open = 0
        calls: dict[str, Callable[..., object]] = {
            "Init": self._begin,
            "Shutdown": self._end,
            "DeviceGetCount": lambda: 2,
            "DeviceGetHandleByIndex": self._gpu_handle,
            "DeviceGetMinorNumber": self._minor,
            "DeviceGetGpuInstanceId": {"part": 7}.__getitem__,
            "DeviceGetComputeInstanceId": {"part": 0}.__getitem__,
            "DeviceGetUUID": "GPU-{}".format,
            "DeviceGetName": self._name,
            "DeviceGetMemoryInfo": self._memory,
            "DeviceGetMigMode": self._mode,
            "DeviceGetMaxMigDeviceCount": self._parts,
            "DeviceGetMigDeviceHandleByIndex": self._part,
        }
        for name, call in calls.items():
            setattr(self, f"nvml{name}", call)

    def _begin(self) -> None:
        if not self._driver:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def _end(self) -> None:
        self.open -= 1

    def _gpu_handle(self, index: int) -> int:
        return index

    def _minor(self, index: int) -> int:
        """Return the device number, whose order differs from the bus order."""
        return 3 - index

    def _name(self, handle: object) -> str:
        return "NVIDIA H200"

    def _memory(self, handle: object) -> SimpleNamespace:
        return SimpleNamespace(total=139 * GIB)

    def _mode(self, handle: int) -> list[int]:
        if handle == 0:
            raise self.NVMLError("Not Supported")
        return [1, 1]

    def _parts(self, handle: int) -> int:
        return 7

    def _part(self, handle: int, place: int) -> str:
        if place:
            raise self.NVMLError("Not Found")
        return "part"


def test_gpus_are_read_from_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    whole, part = find_devices({}, LIBRARY)
    assert whole == Device(0, "GPU-0", "NVIDIA H200", 139 * GIB, minor=3)
    assert (whole.accelerator, whole.word) == ("NVIDIA_H200_141GB", "0")
    assert (part.index, part.minor, part.word) == (1, 2, "GPU-part")
    assert part.part == Part(0, 7, 0)
    assert find_devices({"CUDA_VISIBLE_DEVICES": "0"}, LIBRARY) == (whole,)
    assert library.open == 0


def test_machine_without_driver_or_library_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(driver=False))
    assert find_devices({}, LIBRARY) == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert find_devices({}, LIBRARY) == ()
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    assert find_devices({}, "libnone-of-this-machine.so.1") == ()


def test_each_gpu_of_a_machine_belongs_to_exactly_one_virtual_node() -> None:
    gpus = fake_devices("Tesla T4", "Tesla T4", "NVIDIA L4")
    whole = Node("local", 8.0, 64 * GIB)
    assert split(whole, share(gpus, 1), Declared()) == (Node("local", 8.0, 64 * GIB, totals(gpus)),)
    assert split(whole, share(gpus, 2), Declared()) == (
        Node("local-0", 4.0, 32 * GIB, (("NVIDIA_L4", 1), ("NVIDIA_TESLA_T4", 1))),
        Node("local-1", 4.0, 32 * GIB, (("NVIDIA_TESLA_T4", 1),)),
    )


def test_virtual_nodes_in_strict_mode_have_the_declared_resources() -> None:
    """spec/queue#capacity: Strict mode."""
    declared = Declared(96.0, 600 * GIB, (("NVIDIA_TESLA_A100", 8),))
    assert split(Node("local", 2.0, GIB), share((), 2), declared) == (
        Node("local-0", 96.0, 600 * GIB, (("NVIDIA_TESLA_A100", 8),)),
        Node("local-1", 96.0, 600 * GIB, (("NVIDIA_TESLA_A100", 8),)),
    )
