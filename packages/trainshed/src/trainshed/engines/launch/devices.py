"""Finds the GPUs of this machine, as the driver names them, and chooses which of them a replica gets.

A device is found by NVML (package nvidia-ml-py, loaded where there is a driver); without the package or a
driver there are none. What a program then sees of them is said by `driver`.
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


def find_devices(ambient: Mapping[str, str], library: str = _NVML) -> tuple[Device, ...]:
    """Return the GPUs that the driver lists, in the order of their index, without those that
    CUDA_VISIBLE_DEVICES in `ambient`, the service's own environment, excludes. Blocks briefly. `library`:
    name of the driver's NVML library."""
    try:
        # Without the driver, loading the package would only cost each service a megabyte.
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
        return visible(tuple(_ask(nvml)), ambient.get("CUDA_VISIBLE_DEVICES"))
    except nvml.NVMLError as error:
        log.warning("the GPUs cannot be listed (%s); programs get none", error)
        return ()
    finally:
        nvml.nvmlShutdown()


def _ask(nvml: Any) -> Iterator[Device]:
    for index in range(nvml.nvmlDeviceGetCount()):
        whole = nvml.nvmlDeviceGetHandleByIndex(index)
        minor = None
        # It may have no device file of its own, as in some virtual machines.
        with contextlib.suppress(nvml.NVMLError):
            minor = int(nvml.nvmlDeviceGetMinorNumber(whole))
        parts = list(_parts(nvml, whole))
        for handle, part in parts or [(whole, None)]:
            yield Device(
                index,
                nvml.nvmlDeviceGetUUID(handle),
                nvml.nvmlDeviceGetName(handle),
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
    devices: Sequence[Device], count: int, accelerator: str | None, taken: Iterable[str | None]
) -> str:
    """Choose the devices of a node for a replica that asks for `count` of a public type. Returns the value of
    its CUDA_VISIBLE_DEVICES: "" if there are none. `taken`: the values of all replicas that have devices
    already.

    Devices of the type come first, and of those the ones that the fewest replicas have. If there are too few,
    the replica gets and shares what there is (spec/queue#capacity, relaxed mode; in strict mode the scheduler
    admits no more than there is).
    """
    uses = Counter(word for words in taken if words for word in words.split(","))
    order = sorted(
        devices, key=lambda d: (d.accelerator != accelerator, uses[d.word], d.index, d.word)
    )
    return ",".join(device.word for device in sorted(order[:count], key=lambda d: d.index))


Mount = tuple[str, str, bool]
"""Source on the machine, target as the program sees it, whether it may only be read."""

_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""Device files that every program needs that uses a GPU, whichever."""
_MINORS = "proc/driver/nvidia-caps/mig-minors"
_LIBRARIES = ("libcuda.so", "libcudadebugger.so", "libnvidia-", "libnvcuvid.so")
_PROGRAMS = ("nvidia-smi",)
_OWN_PLACE = "/usr/local/nvidia"
"""Where a driver lies that came in a container, and where images for GPUs look for it by themselves."""
_PLACES = (f"{_OWN_PLACE}/lib64", f"{_OWN_PLACE}/lib")
_PROGRAM_PLACES = ("/usr/bin", "/bin", f"{_OWN_PLACE}/bin")
_SECONDS = 10
"""Until a program of the machine is given up."""


class DeviceEdits(Struct, frozen=True):
    """What one replica gets for its GPUs."""

    #: Device files that its /dev shows besides the harmless ones.
    devices: tuple[str, ...] = ()
    #: (source, target, read-only).
    mounts: tuple[Mount, ...] = ()
    #: Variables that win over the job's own.
    environ: dict[str, str] = field(default_factory=dict[str, str])
    #: Directories, as the program sees them, to add to LD_LIBRARY_PATH.
    library_path: tuple[str, ...] = ()
    #: Directories to add to PATH, likewise.
    path: tuple[str, ...] = ()
    #: Uuids of its GPUs, for the measurement of their use.
    gpus: tuple[str, ...] = ()


class Driver(Struct, frozen=True):
    """The driver's files on this machine."""

    #: Directory that all paths are relative to.
    root: Path = Path("/")
    #: (name that programs ask for, file).
    libraries: tuple[tuple[str, str], ...] = ()
    #: Paths of its programs.
    programs: tuple[str, ...] = ()
    #: Directories of libraries that the machine's own linker does not know.
    apart: tuple[str, ...] = ()
    #: Number in the device file's name, by the path of the capability (`gpu0/gi1/access`).
    caps: dict[str, int] = field(default_factory=dict[str, int])


NO_DRIVER = Driver()


def find_driver(root: Path = Path("/"), cache: str | None = None) -> Driver:
    """Find the driver's files; called once, at the start, on a machine that has GPUs. `cache`: output of
    `ldconfig -p`, None = run it. Blocks for some tens of milliseconds."""
    if not (root / "dev/nvidia-uvm").exists():
        # The first program that uses it has it created, which is not possible from within a sandbox.
        _run("nvidia-modprobe", "-u", "-c=0")
    known = dict(_known_to_linker(_run("ldconfig", "-p") if cache is None else cache))
    apart = dict(_lying_in(root, _PLACES))
    libraries = _of_one_driver(root, apart | known)
    programs = [
        f"{place}/{name}"
        for name in _PROGRAMS
        for place in _PROGRAM_PLACES
        if (root / place[1:] / name).exists()
    ]
    beside = {file.rpartition("/")[0] for name, file in libraries if name not in known}
    return Driver(
        root,
        tuple(libraries),
        tuple(programs[:1]),
        tuple(sorted(beside)),
        dict(_capabilities(root)),
    )


def device_edits(
    words: str | None, devices: Sequence[Device], driver: Driver, *, private: bool, image: bool
) -> DeviceEdits:
    """Return what a replica gets. `words`: its slot's `devices`. `devices`: all GPUs of the machine.
    `private`: its /dev shows only what is named here, so that it cannot open other replicas' GPUs. `image`:
    its root file system is not the machine's. Reads the file system, changes nothing."""
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
        # CUDA counts from 0 on what it sees, and it sees no others.
        numbers = ",".join(device.uuid if device.part else str(n) for n, device in enumerate(own))
    else:
        # It is not known which file belongs to which GPU, so that it gets all of them, as without a private
        # /dev.
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
        # `Device.index` counts in this order; CUDA's default would begin with the fastest.
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
            names += [
                f"/dev/nvidia-caps/nvidia-cap{driver.caps[cap]}"
                for cap in caps
                if cap in driver.caps
            ]
    return (name for name in dict.fromkeys(names) if (driver.root / name[1:]).exists())


def _mounts(driver: Driver) -> Iterator[Mount]:
    for name, file in driver.libraries:
        yield file, f"{_PLACES[0]}/{name}", True
    for file in driver.programs:
        yield file, f"{_OWN_PLACE}/bin/{file.rpartition('/')[2]}", True


def _known_to_linker(cache: str) -> Iterator[tuple[str, str]]:
    """Yield (name, path) of the driver's 64-bit libraries in the output of `ldconfig -p`."""
    for line in cache.splitlines():
        name, _, rest = line.strip().partition(" (")
        kinds, arrow, path = rest.partition(") => ")
        # 32-bit libraries have no second kind beside "libc6".
        if arrow and "," in kinds and name.startswith(_LIBRARIES):
            yield name, path


def _lying_in(root: Path, places: Iterable[str]) -> Iterator[tuple[str, str]]:
    for place in places:
        for file in sorted((root / place[1:]).glob("lib*.so*")):
            if file.name.startswith(_LIBRARIES):
                yield file.name, f"{place}/{file.name}"


def _of_one_driver(root: Path, libraries: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return those libraries, by name and real file, whose version is libcuda's. Others only have a similar
    name."""
    files = {name: _real(root, path) for name, path in sorted(libraries.items())}
    version = files.get("libcuda.so.1", "").partition(".so.")[2]
    return [
        (name, file) for name, file in files.items() if version and file.endswith(f".{version}")
    ]


def _real(root: Path, path: str) -> str:
    """Return the real path behind a path below `root`, as the machine names it."""
    real = (root / path[1:]).resolve()
    base = root.resolve()
    return f"/{real.relative_to(base)}" if real.is_relative_to(base) else str(real)


def _capabilities(root: Path) -> Iterator[tuple[str, int]]:
    try:
        text = (root / _MINORS).read_text(encoding="ascii")
    except OSError:
        return  # No GPU of this machine can be divided.
    for line in text.splitlines():
        cap, _, number = line.strip().partition(" ")
        if number.isdecimal():
            yield cap, int(number)


def _run(program: str, *arguments: str) -> str:
    """Return the output of a program of the machine; "" if it does not exist or fails."""
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
        log.warning("%s cannot be asked: %s", path, error)
        return ""
    return made.stdout
