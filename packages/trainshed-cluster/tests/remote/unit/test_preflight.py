"""Which nodes are fit, by what was seen on them, and for how long the others are left alone."""

from functools import partial
from pathlib import Path

import pytest

from tests.fake_devices import FakeDevices
from trainshed_cluster.remote import preflight
from trainshed_cluster.remote.nodes import Quarantine
from trainshed_cluster.remote.preflight import PreflightFailed, require_fit


def test_all_that_is_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       100 kB\nMemAvailable:    64 kB\n")
    check = partial(require_fit, tmp_path, devices=FakeDevices("Tesla T4"), meminfo=meminfo)
    check(memory_bytes=64 << 10, gpus=1, skew=0.2)
    check(memory_bytes=1 << 40, gpus=0, skew=None, meminfo=tmp_path / "none")
    monkeypatch.setattr(preflight, "LEAST_DISK", 1 << 60)
    with pytest.raises(PreflightFailed) as caught:
        check(memory_bytes=2 << 30, gpus=2, skew=-40.0)
    disk, *others = str(caught.value).split("; ")
    assert disk.endswith("of disk are free, 1.1e+09 GiB are needed")
    assert others == [
        "6.1e-05 GiB of memory are free, 2 GiB are needed",
        "its clock is 40 s behind the service's",
        "the driver names 1 GPUs, 2 are needed",
    ]


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
