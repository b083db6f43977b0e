"""Tests of a replica's view of the GPU driver (spec/machines#gpus), with simulated machines."""

from pathlib import Path

import pytest

from trainshed.engines.launch.devices import Device, DeviceEdits, Driver, Part, device_edits, find_driver

LIB = "/usr/lib/x86_64-linux-gnu"
VERSION = "550.54.14"
SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
GPUS = (
    # The driver's device numbers differ from the bus order.
    Device(0, "GPU-a", "Tesla T4", 1 << 34, minor=1),
    Device(1, "GPU-b", "Tesla T4", 1 << 34, minor=0),
)
PARTS = tuple(Device(0, f"MIG-{n}", "NVIDIA A100 MIG 3g.20gb", 1 << 34, 0, Part(n, n + 1, 0)) for n in (0, 1))
CACHE = f"""3 libs found in cache `/etc/ld.so.cache'
\tlibnvidia-ml.so.1 (libc6,x86-64) => {LIB}/libnvidia-ml.so.1
\tlibnvidia-ml.so.1 (libc6) => /usr/lib/i386-linux-gnu/libnvidia-ml.so.1
\tlibnvidia-container.so.1 (libc6,x86-64) => {LIB}/libnvidia-container.so.1
\tlibcuda.so.1 (libc6,x86-64) => {LIB}/libcuda.so.1
\tlibcuda.so (libc6,x86-64) => {LIB}/libcuda.so
\tlibc.so.6 (libc6,x86-64, OS ABI: Linux 3.2.0) => {LIB}/libc.so.6
"""


class Machine:
    """A root directory with the files of a GPU driver."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files(*SHARED, "/dev/nvidia0", "/dev/nvidia1", "/usr/bin/nvidia-smi")
        self.library(LIB, "libcuda.so", VERSION)
        self.library(LIB, "libnvidia-ml.so", VERSION)
        self.library(LIB, "libnvidia-container.so", "1.17.0")

    def files(self, *paths: str) -> None:
        for path in paths:
            file = self.root / path[1:]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()

    def library(self, place: str, name: str, version: str) -> None:
        self.files(f"{place}/{name}.{version}")
        (self.root / place[1:] / f"{name}.1").symlink_to(f"{name}.{version}")
        (self.root / place[1:] / name).symlink_to(f"{name}.1")

    def driver(self) -> Driver:
        return find_driver(self.root, CACHE)

    def edits(self, words: str | None, *, image: bool = False) -> DeviceEdits:
        return device_edits(words, GPUS, self.driver(), private=True, image=image)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_replica_sees_device_files_of_the_assigned_gpus_only(machine: Machine) -> None:
    assert machine.edits("0").devices == (*SHARED, "/dev/nvidia1")
    assert machine.edits("1").devices == (*SHARED, "/dev/nvidia0")
    assert machine.edits("0,1").devices == (*SHARED, "/dev/nvidia1", "/dev/nvidia0")


def test_cuda_visible_devices_numbers_the_gpus_of_a_replica_from_zero(machine: Machine) -> None:
    """CUDA numbers only the devices that it can open. The second GPU of the machine may be the only GPU of
    the replica."""
    edits = machine.edits("1")
    assert edits.environ == {
        "CUDA_VISIBLE_DEVICES": "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "GPU-b",
    }
    assert edits.gpus == ("GPU-b",)


@pytest.mark.parametrize("words", [None, ""])
def test_cuda_visible_devices_of_a_replica_without_gpus_is_empty(machine: Machine, words: str | None) -> None:
    """spec/queue#capacity: In relaxed mode, CUDA_VISIBLE_DEVICES is empty."""
    edits = machine.edits(words, image=True)
    assert edits == DeviceEdits(environ={"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": ""})


def test_nvidia_driver_libraries_are_mounted_into_an_image_by_their_sonames(machine: Machine) -> None:
    edits = machine.edits("0", image=True)
    place = "/usr/local/nvidia"
    assert sorted(edits.mounts) == [
        ("/usr/bin/nvidia-smi", f"{place}/bin/nvidia-smi", True),
        (f"{LIB}/libcuda.so.{VERSION}", f"{place}/lib64/libcuda.so", True),
        (f"{LIB}/libcuda.so.{VERSION}", f"{place}/lib64/libcuda.so.1", True),
        (f"{LIB}/libnvidia-ml.so.{VERSION}", f"{place}/lib64/libnvidia-ml.so.1", True),
    ]
    assert (edits.library_path, edits.path) == ((f"{place}/lib64",), (f"{place}/bin",))


def test_mig_gpu_instance_gets_the_device_files_of_its_capabilities(machine: Machine) -> None:
    machine.files(*(f"/dev/nvidia-caps/nvidia-cap{n}" for n in (1, 2, 12, 13, 21, 22)))
    minors = machine.root / "proc/driver/nvidia-caps/mig-minors"
    minors.parent.mkdir(parents=True)
    minors.write_text(
        "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n"
        "gpu0/gi2/access 21\ngpu0/gi2/ci0/access 22\ngpu1/gi1/access 30\n"
    )
    caps = "/dev/nvidia-caps/nvidia-cap"
    edits = device_edits("MIG-1", PARTS, machine.driver(), private=True, image=False)
    assert edits.devices == (*SHARED, "/dev/nvidia0", f"{caps}21", f"{caps}22")
    assert edits.environ["CUDA_VISIBLE_DEVICES"] == "MIG-1"


def test_nvidia_device_files_created_after_the_service_start_are_detected(machine: Machine) -> None:
    late = machine.root / "dev/nvidia-uvm-tools"
    late.unlink()
    driver = machine.driver()
    before = device_edits("0", GPUS, driver, private=True, image=False)
    late.touch()
    after = device_edits("0", GPUS, driver, private=True, image=False)
    assert set(after.devices) - set(before.devices) == {"/dev/nvidia-uvm-tools"}
