"""Which nodes are fit, by what was seen on them, and for how long the others are left alone."""

from pathlib import Path

import pytest

from trainshed.engines.launch.devices import FakeDevices
from trainshed_cluster.remote.nodes import Quarantine
from trainshed_cluster.remote.preflight import Findings, failures, look

GIB = 1 << 30
FIT = Findings(disk_bytes=10 * GIB, memory_bytes=8 * GIB, skew=0.2, gpus=2)


def test_a_node_that_has_all_is_fit() -> None:
    assert failures(FIT, memory_bytes=8 * GIB, gpus=2) == ()
    assert failures(Findings(2 * GIB, None, None), memory_bytes=8 * GIB, gpus=0) == ()


def test_all_that_is_wrong_is_said() -> None:
    found = Findings(disk_bytes=GIB // 2, memory_bytes=GIB, skew=-40.0, gpus=1)
    assert failures(found, memory_bytes=2 * GIB, gpus=2) == (
        "0.5 GiB of disk are free, 1 GiB are needed",
        "1 GiB of memory are free, 2 GiB are needed",
        "its clock is 40 s behind the service's",
        "the driver names 1 GPUs, 2 are needed",
    )


def test_a_node_is_looked_at(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       100 kB\nMemAvailable:    64 kB\n")
    found = look(tmp_path, skew=1.0, devices=FakeDevices("Tesla T4"), meminfo=meminfo)
    assert (found.memory_bytes, found.skew, found.gpus) == (64 * 1024, 1.0, 1)
    assert found.disk_bytes > 0
    assert look(tmp_path, skew=None, devices=None, meminfo=tmp_path / "none").memory_bytes is None


def test_a_quarantine_outlives_its_service_and_has_an_end(tmp_path: Path) -> None:
    def opened() -> Quarantine:
        quarantine = Quarantine(tmp_path / "engine" / "quarantine.json", 60.0)
        quarantine.load()
        return quarantine

    first = opened()
    first.add("node1", "its clock is slow", 1_000_000.0)
    first.add("node2", "no disk", 1_000_030.0)
    first.save()
    later = opened()
    assert later.cause("node1") == ("quarantined until 1970-01-12 13:47:40 UTC: its clock is slow")
    assert later.end(1_000_059.0) == ()
    assert later.end(1_000_060.0) == ("node1",)
    assert (later.cause("node1"), later.remove("node1"), later.remove("node2")) == ("", False, True)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"quarantine\.json cannot be read"):
        Quarantine(path, 60.0).load()
