"""Finds the GPUs of this machine, as the driver names them, and chooses which of them a replica gets.

A device is found by NVML (package nvidia-ml-py, loaded where there is a driver); without the package or a
driver there are none. What a program then sees of them is said by `driver`.
"""

import contextlib
import ctypes
import importlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

log = logging.getLogger(__name__)

_GIB = 1 << 30
_NVML: Final = "libnvidia-ml.so.1"

_TYPES: tuple[tuple[str, int, str], ...] = (
    ("GB200", 0, "NVIDIA_GB200"),
    ("B200", 0, "NVIDIA_B200"),
    ("H200", 0, "NVIDIA_H200_141GB"),
    ("H100", 0, "NVIDIA_H100_80GB"),
    ("A100", 60 * _GIB, "NVIDIA_A100_80GB"),
    ("A100", 0, "NVIDIA_TESLA_A100"),
    ("L4", 0, "NVIDIA_L4"),
    ("T4", 0, "NVIDIA_TESLA_T4"),
    ("V100", 0, "NVIDIA_TESLA_V100"),
    ("P100", 0, "NVIDIA_TESLA_P100"),
    ("P4", 0, "NVIDIA_TESLA_P4"),
    ("K80", 0, "NVIDIA_TESLA_K80"),
    ("RTX PRO 6000", 0, "NVIDIA_RTX_PRO_6000"),
)
"""Words of the product's name, bytes of memory that it has at least, public type (facts, GPU table); first
match."""


class Part(Struct, frozen=True):
    """A part of a divided GPU (MIG): the `place`-th, with the numbers of its GPU instance and compute
    instance."""

    place: int
    gpu_instance: int
    compute_instance: int


class Device(Struct, frozen=True):
    """One GPU."""

    #: Its number in the order of the PCI bus.
    index: int
    uuid: str
    #: "NVIDIA H200".
    product: str
    #: All its memory.
    memory_bytes: int
    #: The number in the name of its device file; None = it has none.
    minor: int | None = None
    #: Which part of a GPU it is, in which case only its uuid names it; None = it is a whole one.
    part: Part | None = None

    @property
    def accelerator(self) -> str:
        """The public accelerator type; "" if no public type stands for it."""
        return accelerator_type(self.product, self.memory_bytes)

    @property
    def word(self) -> str:
        """The device's name in CUDA_VISIBLE_DEVICES: its number where possible, since programs parse that,
        else its uuid."""
        return self.uuid if self.part else str(self.index)


class Devices(Protocol):
    """Where the engine learns which GPUs there are."""

    def find(self) -> tuple[Device, ...]:
        """Return all of them, in the order of their index. Blocks briefly; called once, at the start."""
        ...


class FakeDevices:
    """GPUs that do not exist, for tests and demonstrations."""

    def __init__(self, *products: str, memory_bytes: int = 16 * _GIB) -> None:
        self._found = tuple(
            Device(index, f"GPU-{index:08x}", product, memory_bytes)
            for index, product in enumerate(products)
        )

    def find(self) -> tuple[Device, ...]:
        return self._found


class NvmlDevices:
    """The GPUs that the driver lists, without those that CUDA_VISIBLE_DEVICES in `ambient`, the service's own
    environment, excludes."""

    def __init__(self, ambient: Mapping[str, str], library: str = _NVML) -> None:
        """`library`: name of the driver's NVML library."""
        self._visible = ambient.get("CUDA_VISIBLE_DEVICES")
        self._library = library

    def find(self) -> tuple[Device, ...]:
        try:
            # Without the driver, loading the package would only cost each service a megabyte.
            ctypes.CDLL(self._library)
        except OSError as error:
            log.info("no GPUs: %s", error)
            return ()
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            return ()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            log.info("no GPUs: %s", error)
            return ()
        try:
            return visible(tuple(_ask(nvml)), self._visible)
        except nvml.NVMLError as error:
            log.warning("the GPUs cannot be listed (%s); programs get none", error)
            return ()
        finally:
            nvml.nvmlShutdown()


def _ask(nvml: Any) -> Iterator[Device]:
    """Yield every GPU, or its parts if it is divided."""
    for index in range(nvml.nvmlDeviceGetCount()):
        whole = nvml.nvmlDeviceGetHandleByIndex(index)
        minor = None
        with contextlib.suppress(
            nvml.NVMLError
        ):  # It has no device file of its own, as in some virtual machines.
            minor = int(nvml.nvmlDeviceGetMinorNumber(whole))
        parts = list(_parts(nvml, whole))
        for handle, part in parts or [(whole, None)]:
            yield Device(
                index,
                _text(nvml.nvmlDeviceGetUUID(handle)),
                _text(nvml.nvmlDeviceGetName(handle)),
                int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                minor,
                part,
            )


def _parts(nvml: Any, whole: Any) -> Iterator[tuple[Any, Part]]:
    with contextlib.suppress(nvml.NVMLError):  # This GPU cannot be divided.
        if nvml.nvmlDeviceGetMigMode(whole)[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(whole)):
                with contextlib.suppress(nvml.NVMLError):  # No part has this place.
                    handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, place)
                    gpu = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
                    yield (
                        handle,
                        Part(place, gpu, int(nvml.nvmlDeviceGetComputeInstanceId(handle))),
                    )


def _text(value: str | bytes) -> str:
    """Return an answer of the binding as text; older releases answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value


def accelerator_type(product: str, memory_bytes: int) -> str:
    """The public type of a product such as "Tesla T4" or "NVIDIA A100-SXM4-80GB"; "" if none stands for
    it."""
    words = set(product.replace("-", " ").split())
    if "MIG" in words:
        return ""  # A part of one.
    for words_of_it, least, accelerator in _TYPES:
        if words.issuperset(words_of_it.split()) and memory_bytes >= least:
            return accelerator
    return ""


def visible(devices: tuple[Device, ...], setting: str | None) -> tuple[Device, ...]:
    """Return the devices that CUDA_VISIBLE_DEVICES = `setting` leaves visible. It lists numbers or beginnings
    of uuids, of which those from the first unknown one on do not count; None = the variable is not set."""
    if setting is None:
        return devices
    left: list[Device] = []
    for word in filter(None, (part.strip() for part in setting.split(","))):
        matching = [d for d in devices if word in (d.word, str(d.index)) or d.uuid.startswith(word)]
        if not matching:
            break
        left += [device for device in matching if device not in left]
    return tuple(left)


def totals(devices: Iterable[Device]) -> tuple[tuple[str, int], ...]:
    """Return (public type, count) pairs, in the order of the types' names."""
    return tuple(sorted(Counter(device.accelerator for device in devices).items()))


def choose(
    devices: Sequence[Device], count: int, accelerator: str, taken: Iterable[str | None]
) -> str | None:
    """Choose the devices of a node for a replica that asks for `count` of a public type. Returns the value of
    its CUDA_VISIBLE_DEVICES: None if it asks for none, "" if there are none. `taken`: the values of all
    replicas that have devices already.

    Devices of the type come first, and of those the ones that the fewest replicas have. If there are too few,
    the replica gets and shares what there is (spec/queue#capacity, relaxed mode; in strict mode the scheduler
    admits no more than there is).
    """
    if not count:
        return None
    uses = Counter(word for words in taken if words for word in words.split(","))
    order = sorted(
        devices, key=lambda d: (d.accelerator != accelerator, uses[d.word], d.index, d.word)
    )
    return ",".join(device.word for device in sorted(order[:count], key=lambda d: d.index))
