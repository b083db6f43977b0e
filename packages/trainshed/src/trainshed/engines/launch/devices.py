"""Finds the GPUs of this machine and their driver, and chooses the GPUs of each replica.

NVML lists the GPUs (package nvidia-ml-py, loaded only on machines with a driver). Without the package or the
driver, the list is empty. `device_edits` makes a replica's GPUs available to its program.
"""

import contextlib
import ctypes
import importlib
import logging
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

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
"""Maps GPU products to public accelerator types (facts, GPU table). An entry has the words of the product
name, the minimum memory in bytes, and the public type. The first matching entry applies."""


class Part(Struct, frozen=True):
    """A part of a GPU that is divided by MIG: its index `place`, and the numbers of its GPU instance and
    compute instance."""

    place: int
    gpu_instance: int
    compute_instance: int


class Device(Struct, frozen=True):
    """One GPU."""

    #: Position of the GPU in the order of the PCI bus.
    index: int
    uuid: str
    #: Product name, for example "NVIDIA H200".
    product: str
    #: Total memory in bytes.
    memory_bytes: int
    #: Number in the name of the device file; None = the GPU has no device file.
    minor: int | None = None
    #: The MIG part, which is identified only by its UUID; None = a whole GPU.
    part: Part | None = None

    @property
    def accelerator(self) -> str:
        """The public accelerator type, or "" if the product has none."""
        return accelerator_type(self.product, self.memory_bytes)

    @property
    def word(self) -> str:
        """The device in the form of CUDA_VISIBLE_DEVICES. For a whole GPU, this is the index, because
        programs expect indexes. For a MIG part, it is the UUID."""
        return self.uuid if self.part else str(self.index)


def find_devices(ambient: Mapping[str, str], library: str = _NVML) -> tuple[Device, ...]:
    """Return the GPUs that the driver lists and CUDA_VISIBLE_DEVICES does not exclude, by index. Blocks
    briefly. `ambient`: the service's own environment. `library`: file name of the driver's NVML
    library."""
    try:
        # Check for the driver first: without it, the package would only waste a megabyte of memory.
        ctypes.CDLL(library)
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
        return visible(tuple(_query_devices(nvml)), ambient.get("CUDA_VISIBLE_DEVICES"))
    except nvml.NVMLError as error:
        log.warning("the driver cannot list the GPUs (%s); programs get no GPUs", error)
        return ()
    finally:
        nvml.nvmlShutdown()


def _query_devices(nvml: Any) -> Iterator[Device]:
    for index in range(nvml.nvmlDeviceGetCount()):
        whole = nvml.nvmlDeviceGetHandleByIndex(index)
        minor = None
        # In some virtual machines, the GPU has no device file. Its `minor` is then None.
        with contextlib.suppress(nvml.NVMLError):
            minor = int(nvml.nvmlDeviceGetMinorNumber(whole))
        parts = list(_parts(nvml, whole))
        for handle, part in parts or [(whole, None)]:
            yield Device(
                index=index,
                uuid=nvml.nvmlDeviceGetUUID(handle),
                product=nvml.nvmlDeviceGetName(handle),
                memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                minor=minor,
                part=part,
            )


def _parts(nvml: Any, whole: Any) -> Iterator[tuple[Any, Part]]:
    with contextlib.suppress(nvml.NVMLError):  # This GPU cannot be divided, so it has no parts.
        if nvml.nvmlDeviceGetMigMode(whole)[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(whole)):
                with contextlib.suppress(nvml.NVMLError):  # Skip an index without a part.
                    handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, place)
                    gpu = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
                    yield (
                        handle,
                        Part(
                            place=place,
                            gpu_instance=gpu,
                            compute_instance=int(nvml.nvmlDeviceGetComputeInstanceId(handle)),
                        ),
                    )


def accelerator_type(product: str, memory_bytes: int) -> str:
    """Return the public type of a product such as "Tesla T4" or "NVIDIA A100-SXM4-80GB", or "" if it has
    none."""
    words = set(product.replace("-", " ").split())
    if "MIG" in words:
        return ""  # A part of a GPU has no public type.
    for words_of_it, least, accelerator in _TYPES:
        if words.issuperset(words_of_it.split()) and memory_bytes >= least:
            return accelerator
    return ""


def visible(devices: tuple[Device, ...], setting: str | None) -> tuple[Device, ...]:
    """Return the devices that are visible with CUDA_VISIBLE_DEVICES = `setting`; None = the variable is not
    set. The setting lists indexes or prefixes of UUIDs. As in CUDA, the first unknown entry ends the list."""
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
    """Return (public type, count) pairs, sorted by type."""
    return tuple(sorted(Counter(device.accelerator for device in devices).items()))


def choose(
    devices: Sequence[Device], count: int, accelerator: str | None, taken: Iterable[str | None]
) -> str:
    """Choose the devices of a node for a replica that requests `count` devices of a public type. Devices of
    that type are preferred, and among them the devices that the fewest replicas use.

    If the node has too few devices, the replica shares some (spec/queue#capacity, relaxed mode). Strict mode
    prevents this. `taken`: the CUDA_VISIBLE_DEVICES of all replicas that already have devices. Returns the
    replica's CUDA_VISIBLE_DEVICES: "" if the node has no devices.
    """
    uses = Counter(word for words in taken if words for word in words.split(","))
    order = sorted(devices, key=lambda d: (d.accelerator != accelerator, uses[d.word], d.index, d.word))
    return ",".join(device.word for device in sorted(order[:count], key=lambda d: d.index))


Mount = tuple[str, str, bool]
"""Source on the machine, target in the program's view, whether it is read-only."""

_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""Device files that every program with a GPU needs."""
_MINORS = "proc/driver/nvidia-caps/mig-minors"
_LIBRARIES = ("libcuda.so", "libcudadebugger.so", "libnvidia-", "libnvcuvid.so")
_PROGRAMS = ("nvidia-smi",)
_OWN_PLACE = "/usr/local/nvidia"
"""Path of a driver in a container. Images for GPUs search this path automatically."""
_PLACES = (f"{_OWN_PLACE}/lib64", f"{_OWN_PLACE}/lib")
_PROGRAM_PLACES = ("/usr/bin", "/bin", f"{_OWN_PLACE}/bin")
_SECONDS = 10
"""Timeout in seconds for running one of the machine's programs."""


class DeviceEdits(Struct, frozen=True):
    """The changes to a replica's environment and sandbox that its GPUs require."""

    #: Device files in /dev, in addition to the harmless devices that all programs have.
    devices: tuple[str, ...] = ()
    #: Mounts, each as (source, target, whether it is read-only).
    mounts: tuple[Mount, ...] = ()
    #: Environment variables that override those of the job.
    environ: dict[str, str] = field(default_factory=dict[str, str])
    #: Directories in the program's view that are added to LD_LIBRARY_PATH.
    library_path: tuple[str, ...] = ()
    #: Directories in the program's view that are added to PATH.
    path: tuple[str, ...] = ()
    #: UUIDs of the replica's GPUs, whose use is measured.
    gpus: tuple[str, ...] = ()


class Driver(Struct, frozen=True):
    """The files of the driver on this machine."""

    #: Directory that all paths are relative to.
    root: Path = Path("/")
    #: (name under which programs load the library, path of its file).
    libraries: tuple[tuple[str, str], ...] = ()
    #: Paths of the driver's programs.
    programs: tuple[str, ...] = ()
    #: Directories of libraries that are not in the cache of the dynamic linker.
    apart: tuple[str, ...] = ()
    #: Number in the name of the device file, by capability path (`gpu0/gi1/access`).
    caps: dict[str, int] = field(default_factory=dict[str, int])


NO_DRIVER = Driver()


def find_driver(root: Path = Path("/"), cache: str | None = None) -> Driver:
    """Find the driver's files. Called once at the start, on machines with GPUs. Blocks for some tens of
    milliseconds. `cache`: output of `ldconfig -p`; None = run that command."""
    if not (root / "dev/nvidia-uvm").exists():
        # The first program that uses the device file would create it, but a sandbox does not allow that.
        _run("nvidia-modprobe", "-u", "-c=0")
    known = dict(_parse_linker_cache(_run("ldconfig", "-p") if cache is None else cache))
    apart = dict(_files_in(root, _PLACES))
    libraries = _select_driver_files(root, apart | known)
    programs = [
        f"{place}/{name}"
        for name in _PROGRAMS
        for place in _PROGRAM_PLACES
        if (root / place[1:] / name).exists()
    ]
    beside = {file.rpartition("/")[0] for name, file in libraries if name not in known}
    return Driver(
        root, tuple(libraries), tuple(programs[:1]), tuple(sorted(beside)), dict(_capabilities(root))
    )


def device_edits(
    words: str | None, devices: Sequence[Device], driver: Driver, *, private: bool, image: bool
) -> DeviceEdits:
    """Return the changes for one replica. Reads the file system, changes nothing.

    Args:
        words: `Slot.devices` of the replica's slot.
        devices: All GPUs of the machine.
        private: Whether the replica's /dev contains only the returned device files, so that the replica
            cannot open other replicas' GPUs.
        image: Whether the replica runs in a container image, without the machine's root file system.
    """
    by_word = {device.word: device for device in devices}
    own = [by_word[word] for word in (words or "").split(",") if word in by_word]
    if not own:
        return DeviceEdits(environ={"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": ""})
    gpus = tuple(device.uuid for device in own)
    if not private:
        environ = _environ(words or "", gpus)
        return DeviceEdits(environ=environ, library_path=driver.apart, gpus=gpus)
    if all(device.minor is not None for device in own):
        files = tuple(_files(own, driver))
        # CUDA numbers only the visible devices, from 0.
        numbers = ",".join(device.uuid if device.part else str(n) for n, device in enumerate(own))
    else:
        # The number of a device file is unknown, so the replica gets the device files of all GPUs, as without
        # a private /dev.
        nodes = [*(driver.root / "dev").glob("nvidia*"), *(driver.root / "dev").glob("dxg")]
        files = tuple(sorted(f"/dev/{file.name}" for file in nodes if not file.is_dir()))
        numbers = words or ""
    environ = _environ(numbers, gpus)
    if not image:
        return DeviceEdits(devices=files, environ=environ, library_path=driver.apart, gpus=gpus)
    return DeviceEdits(
        devices=files,
        mounts=tuple(_mounts(driver)),
        environ=environ,
        library_path=(_PLACES[0],) if driver.libraries else (),
        path=(f"{_OWN_PLACE}/bin",) if driver.programs else (),
        gpus=gpus,
    )


def _environ(numbers: str, gpus: Sequence[str]) -> dict[str, str]:
    return {
        "CUDA_VISIBLE_DEVICES": numbers,
        # Number the devices in the order of `Device.index`. CUDA's default order starts with the fastest GPU.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": ",".join(gpus),
    }


def _files(own: Sequence[Device], driver: Driver) -> Iterator[str]:
    names = [f"/dev/{name}" for name in _SHARED]
    names += dict.fromkeys(f"/dev/nvidia{device.minor}" for device in own)
    for device in own:
        if device.part is not None:
            gpu = f"gpu{device.minor}/gi{device.part.gpu_instance}"
            caps = (f"{gpu}/access", f"{gpu}/ci{device.part.compute_instance}/access")
            names += [f"/dev/nvidia-caps/nvidia-cap{driver.caps[cap]}" for cap in caps if cap in driver.caps]
    return (name for name in dict.fromkeys(names) if (driver.root / name[1:]).exists())


def _mounts(driver: Driver) -> Iterator[Mount]:
    for name, file in driver.libraries:
        yield file, f"{_PLACES[0]}/{name}", True
    for file in driver.programs:
        yield file, f"{_OWN_PLACE}/bin/{file.rpartition('/')[2]}", True


def _parse_linker_cache(cache: str) -> Iterator[tuple[str, str]]:
    """Yield (name, path) of the driver's 64-bit libraries in the output of `ldconfig -p`."""
    for line in cache.splitlines():
        name, _, rest = line.strip().partition(" (")
        kinds, arrow, path = rest.partition(") => ")
        # In the output of ldconfig, the entry of a 32-bit library has no second word after "libc6".
        if arrow and "," in kinds and name.startswith(_LIBRARIES):
            yield name, path


def _files_in(root: Path, places: Iterable[str]) -> Iterator[tuple[str, str]]:
    for place in places:
        for file in sorted((root / place[1:]).glob("lib*.so*")):
            if file.name.startswith(_LIBRARIES):
                yield file.name, f"{place}/{file.name}"


def _select_driver_files(root: Path, libraries: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (name, real path) of each library whose version is that of libcuda. Other libraries may have
    similar names, but are not from the driver."""
    files = {name: _resolve(root, path) for name, path in sorted(libraries.items())}
    version = files.get("libcuda.so.1", "").partition(".so.")[2]
    return [(name, file) for name, file in files.items() if version and file.endswith(f".{version}")]


def _resolve(root: Path, path: str) -> str:
    """Return the real path of `path`, a path below `root`. The result is relative to `root`, unless a link
    leads out of it."""
    real = (root / path[1:]).resolve()
    base = root.resolve()
    return f"/{real.relative_to(base)}" if real.is_relative_to(base) else str(real)


def _capabilities(root: Path) -> Iterator[tuple[str, int]]:
    try:
        text = (root / _MINORS).read_text(encoding="ascii")
    except OSError:
        return  # No GPU of this machine can be divided, so the file does not exist.
    for line in text.splitlines():
        cap, _, number = line.strip().partition(" ")
        if number.isdecimal():
            yield cap, int(number)


def _run(program: str, *arguments: str) -> str:
    """Run a program of the machine; return its output, or "" if the program does not exist or fails."""
    path = shutil.which(program) or shutil.which(program, path="/sbin:/usr/sbin:/usr/bin")
    if path is None:
        return ""
    try:
        made = subprocess.run(
            [path, *arguments],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            text=True,
            env={"PATH": os.defpath, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("running %s failed: %s", path, error)
        return ""
    return made.stdout
