"""What a replica gets of the GPU driver (spec/machines#gpus: assigned GPUs only), on machines that are made
of files."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainshed.engines.launch.cdi import Specs
from trainshed.engines.launch.devices import Device, Part
from trainshed.engines.launch.driver import (
    NO_DRIVER,
    DeviceEdits,
    Driver,
    device_edits,
    find_driver,
)

LIB = "/usr/lib/x86_64-linux-gnu"
VERSION = "550.54.14"
SHARED = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
GPUS = (
    # The driver's numbers are not those of the bus.
    Device(0, "GPU-a", "Tesla T4", 1 << 34, minor=1),
    Device(1, "GPU-b", "Tesla T4", 1 << 34, minor=0),
)
PARTS = tuple(
    Device(0, f"MIG-{n}", "NVIDIA A100 MIG 3g.20gb", 1 << 34, 0, Part(n, n + 1, 0)) for n in (0, 1)
)
CACHE = f"""3 libs found in cache `/etc/ld.so.cache'
\tlibnvidia-ml.so.1 (libc6,x86-64) => {LIB}/libnvidia-ml.so.1
\tlibnvidia-ml.so.1 (libc6) => /usr/lib/i386-linux-gnu/libnvidia-ml.so.1
\tlibnvidia-container.so.1 (libc6,x86-64) => {LIB}/libnvidia-container.so.1
\tlibcuda.so.1 (libc6,x86-64) => {LIB}/libcuda.so.1
\tlibcuda.so (libc6,x86-64) => {LIB}/libcuda.so
\tlibc.so.6 (libc6,x86-64, OS ABI: Linux 3.2.0) => {LIB}/libc.so.6
"""


class Machine:
    """A root directory with a driver in it."""

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

    def driver(self, cache: str = CACHE) -> Driver:
        return find_driver(self.root, cache)

    def edits(self, words: str | None, *, image: bool = False, private: bool = True) -> DeviceEdits:
        return device_edits(words, GPUS, self.driver(), private=private, image=image)

    def write_spec(self, name: str, content: dict[str, Any], directory: str = "etc/cdi") -> None:
        file = self.root / directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content) if name.endswith(".json") else yaml.safe_dump(content))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def described(*devices: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A specification as the vendor's tool makes it."""
    hook = "/usr/bin/nvidia-cdi-hook"
    created = {"hookName": "createContainer", "path": hook}
    return {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "devices": list(devices),
        "containerEdits": {
            "deviceNodes": [{"path": path} for path in SHARED],
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=" + LIB],
            "mounts": [
                mounted(f"{LIB}/libcuda.so.{VERSION}"),
                mounted(f"{LIB}/libnvidia-ml.so.{VERSION}"),
                mounted("/usr/bin/nvidia-smi"),
                mounted("/lib/firmware/not-there.bin"),
            ],
            "hooks": [
                created
                | {
                    "args": [
                        "nvidia-cdi-hook",
                        "create-symlinks",
                        "--link",
                        f"libcuda.so.1::{LIB}/libcuda.so",
                    ]
                },
                created | {"args": ["nvidia-cdi-hook", "enable-cuda-compat"]},
                created | {"args": ["nvidia-cdi-hook", "update-ldcache", "--folder", LIB]},
            ],
        },
    } | more


def mounted(path: str) -> dict[str, Any]:
    return {
        "hostPath": path,
        "containerPath": path,
        "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
    }


def node(name: str, *paths: str) -> dict[str, Any]:
    nodes = [{"path": path, "type": "c", "major": 195, "minor": 0} for path in paths]
    return {"name": name, "containerEdits": {"deviceNodes": nodes}}


BY_NUMBER = (node("0", "/dev/nvidia1"), node("1", "/dev/nvidia0"))


# --- without a specification ---


def test_a_replica_sees_the_files_of_its_own_gpus_alone(machine: Machine) -> None:
    assert machine.edits("0").devices == (*SHARED, "/dev/nvidia1")
    assert machine.edits("1").devices == (*SHARED, "/dev/nvidia0")
    assert machine.edits("0,1").devices == (*SHARED, "/dev/nvidia1", "/dev/nvidia0")


def test_where_no_others_can_be_seen_they_are_numbered_from_zero(machine: Machine) -> None:
    """CUDA counts what it can open: the second GPU of the machine is the only one of the replica's."""
    edits = machine.edits("1")
    assert edits.environ == {
        "CUDA_VISIBLE_DEVICES": "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "GPU-b",
    }
    assert edits.gpus == ("GPU-b",)


def test_where_all_can_be_seen_they_are_numbered_as_on_the_machine(machine: Machine) -> None:
    edits = machine.edits("1", private=False)
    assert (edits.devices, edits.mounts) == ((), ())
    assert edits.environ["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize("words", [None, ""])
def test_a_replica_without_gpus_sees_none_of_the_machines(
    machine: Machine, words: str | None
) -> None:
    """spec/queue#capacity, relaxed mode: an empty CUDA_VISIBLE_DEVICES."""
    edits = machine.edits(words, image=True)
    assert edits == DeviceEdits(environ={"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": ""})


def test_on_a_machine_without_gpus_only_who_asked_for_some_is_told() -> None:
    assert device_edits(None, (), NO_DRIVER, private=True, image=False) == DeviceEdits()
    asked = device_edits("", (), NO_DRIVER, private=True, image=False)
    assert asked.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_an_image_gets_the_drivers_libraries_by_the_names_that_programs_ask_for(
    machine: Machine,
) -> None:
    edits = machine.edits("0", image=True)
    place = "/usr/local/nvidia"
    assert sorted(edits.mounts) == [
        ("/usr/bin/nvidia-smi", f"{place}/bin/nvidia-smi", True),
        (f"{LIB}/libcuda.so.{VERSION}", f"{place}/lib64/libcuda.so", True),
        (f"{LIB}/libcuda.so.{VERSION}", f"{place}/lib64/libcuda.so.1", True),
        (f"{LIB}/libnvidia-ml.so.{VERSION}", f"{place}/lib64/libnvidia-ml.so.1", True),
    ]
    assert (edits.library_path, edits.path) == ((f"{place}/lib64",), (f"{place}/bin",))


def test_without_an_image_the_machines_own_libraries_are_there_already(machine: Machine) -> None:
    edits = machine.edits("0")
    assert (edits.mounts, edits.library_path, edits.path) == ((), (), ())


def test_a_driver_that_came_in_a_container_is_found_where_those_lie(tmp_path: Path) -> None:
    place = "/usr/local/nvidia"
    machine = Machine(tmp_path)
    machine.library(f"{place}/lib64", "libcuda.so", VERSION)
    driver = machine.driver("")
    assert driver.apart == (f"{place}/lib64",)
    edits = device_edits("0", GPUS, driver, private=True, image=False)
    assert edits.library_path == (f"{place}/lib64",)


def test_parts_of_a_gpu_come_with_their_capabilities(machine: Machine) -> None:
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


def test_device_files_that_come_later_are_seen_then(machine: Machine) -> None:
    late = machine.root / "dev/nvidia-uvm-tools"
    late.unlink()
    driver = machine.driver()
    before = device_edits("0", GPUS, driver, private=True, image=False)
    late.touch()
    after = device_edits("0", GPUS, driver, private=True, image=False)
    assert set(after.devices) - set(before.devices) == {"/dev/nvidia-uvm-tools"}


def test_where_nobody_tells_which_file_is_whose_all_are_shown(machine: Machine) -> None:
    unnumbered = [Device(0, "GPU-a", "Tesla T4", 1 << 34), Device(1, "GPU-b", "Tesla T4", 1 << 34)]
    edits = device_edits("1", unnumbered, machine.driver(), private=True, image=False)
    assert {"/dev/nvidia0", "/dev/nvidia1", *SHARED} == set(edits.devices)
    assert edits.environ["CUDA_VISIBLE_DEVICES"] == "1"


# --- by a specification ---


@pytest.mark.parametrize("name", ["nvidia.yaml", "nvidia.json"])
def test_an_image_gets_what_the_specification_says(machine: Machine, name: str) -> None:
    machine.write_spec(name, described(*BY_NUMBER))
    edits = machine.edits("1", image=True)
    assert set(edits.devices) == {*SHARED, "/dev/nvidia0"}
    assert set(edits.mounts) == {
        ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi", True),
        (f"{LIB}/libcuda.so.{VERSION}", f"{LIB}/libcuda.so.{VERSION}", True),
        (f"{LIB}/libcuda.so.{VERSION}", f"{LIB}/libcuda.so.1", True),
        (f"{LIB}/libcuda.so.{VERSION}", f"{LIB}/libcuda.so", True),
        (f"{LIB}/libnvidia-ml.so.{VERSION}", f"{LIB}/libnvidia-ml.so.{VERSION}", True),
        (f"{LIB}/libnvidia-ml.so.{VERSION}", f"{LIB}/libnvidia-ml.so.1", True),
        (f"{LIB}/libnvidia-ml.so.{VERSION}", f"{LIB}/libnvidia-ml.so", True),
    }
    assert edits.library_path == (LIB,)
    assert edits.environ["NVIDIA_CTK_LIBCUDA_DIR"] == LIB
    # Which GPUs it has is still ours to say.
    assert edits.environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert edits.environ["NVIDIA_VISIBLE_DEVICES"] == "GPU-b"


def test_a_process_gets_more_device_files_and_nothing_else_by_it(machine: Machine) -> None:
    machine.files("/dev/dri/renderD128")
    machine.write_spec("nvidia.yaml", described(node("0", "/dev/nvidia1", "/dev/dri/renderD128")))
    edits = machine.edits("0")
    assert edits.devices == (*SHARED, "/dev/nvidia1", "/dev/dri/renderD128")
    assert (edits.mounts, edits.library_path) == ((), ())
    assert "NVIDIA_CTK_LIBCUDA_DIR" not in edits.environ


def test_a_device_file_from_elsewhere_is_mounted(machine: Machine) -> None:
    """Version 0.5 and later: the driver's files may lie below a root of their own."""
    machine.files("/run/nvidia/driver/dev/nvidia1")
    moved = {"path": "/dev/nvidia1", "hostPath": "/run/nvidia/driver/dev/nvidia1"}
    machine.write_spec(
        "nvidia.yaml", described({"name": "0", "containerEdits": {"deviceNodes": [moved]}})
    )
    mount = ("/run/nvidia/driver/dev/nvidia1", "/dev/nvidia1", False)
    assert mount in machine.edits("0").mounts
    assert mount in machine.edits("0", image=True).mounts


def test_a_gpu_is_known_by_uuid_before_its_number(machine: Machine) -> None:
    machine.write_spec(
        "nvidia.yaml", described(node("0", "/dev/nvidia9"), node("GPU-a", "/dev/nvidia1"))
    )
    assert "/dev/nvidia1" in machine.edits("0", image=True).devices


def test_parts_are_known_by_the_number_of_their_gpu_and_their_own(machine: Machine) -> None:
    machine.files("/dev/nvidia-caps/nvidia-cap21")
    machine.write_spec(
        "nvidia.yaml", described(node("0:1", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21"))
    )
    edits = device_edits("MIG-1", PARTS, machine.driver(), private=True, image=True)
    assert "/dev/nvidia-caps/nvidia-cap21" in edits.devices


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param((node("7", "/dev/nvidia7"),), id="knows the GPU not"),
        pytest.param((node("0", "/dev/nvidia0"),), id="of before the GPUs were changed"),
    ],
)
def test_a_specification_that_does_not_fit_is_not_followed(
    machine: Machine, devices: tuple[dict[str, Any], ...]
) -> None:
    machine.write_spec("nvidia.yaml", described(*devices))
    edits = machine.edits("0", image=True)
    assert edits.devices == (*SHARED, "/dev/nvidia1")
    assert edits.library_path == ("/usr/local/nvidia/lib64",)


def test_what_was_made_since_the_machine_started_counts_first(machine: Machine) -> None:
    machine.files("/dev/nvidia-caps/nvidia-cap1")
    machine.write_spec("nvidia.yaml", described(node("0", "/dev/nvidia0")))
    machine.write_spec(
        "nvidia.yaml",
        described(node("0", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap1")),
        "var/run/cdi",
    )
    assert "/dev/nvidia-caps/nvidia-cap1" in machine.edits("0").devices


def test_what_two_files_of_one_directory_say_differently_is_not_followed(machine: Machine) -> None:
    machine.write_spec("a.yaml", described(node("0", "/dev/nvidia1")))
    machine.write_spec("b.yaml", described(node("0", "/dev/nvidia1")))
    assert Specs(machine.root).edits([("0",)]) is None


@pytest.mark.parametrize("version", ["0.3.0", "0.5.0", "0.8.0", "1.0.0", "v0.6.0"])
def test_versions_that_are_understood(machine: Machine, version: str) -> None:
    machine.write_spec("nvidia.yaml", described(*BY_NUMBER, cdiVersion=version))
    assert Specs(machine.root).edits([("0",)]) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cdiVersion: 2.0.0\nkind: nvidia.com/gpu\n", "version 2.0.0"),
        ("cdiVersion: [", "cannot be read"),
        ("cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices: 7\n", "cannot be read"),
        ("- a list\n", "cannot be read"),
    ],
)
def test_a_file_that_is_no_specification_is_named_and_left_out(
    machine: Machine, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    (machine.root / "etc/cdi").mkdir(parents=True)
    (machine.root / "etc/cdi/bad.yaml").write_text(text)
    machine.write_spec("good.yaml", described(*BY_NUMBER))
    with caplog.at_level(logging.WARNING):
        assert Specs(machine.root).edits([("0",)]) is not None
    assert "bad.yaml" in caplog.text and said in caplog.text


def test_other_vendors_are_none_of_ours(machine: Machine) -> None:
    machine.write_spec("fpga.yaml", described(node("0", "/dev/fpga0"), kind="vendor.com/fpga"))
    assert Specs(machine.root).edits([("0",)]) is None


def test_a_hook_that_is_not_followed_is_named(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.write_spec("nvidia.yaml", described(*BY_NUMBER))
    with caplog.at_level(logging.INFO):
        Specs(machine.root)
    assert "enable-cuda-compat" in caplog.text
    assert "update-ldcache" not in caplog.text
