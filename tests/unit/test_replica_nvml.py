"""GPUs of a replica, looked at through the driver's library (spec/machines#gpus): a library of paper, a made
one, a real one."""

import ctypes
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainshed.replica.observe import usage

GIB = 1 << 30
PATIENCE = 20.0


class Paper:
    """Has the library's functions, in Python."""

    def __init__(self, *, driver: bool = True, memory_fails: bool = False) -> None:
        self._driver = driver
        self._memory_fails = memory_fails

    def nvmlInit_v2(self) -> int:  # noqa: N802 - its name in the library
        return 0 if self._driver else 9

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802 - its name in the library
        handle._obj.value = {b"GPU-a": 1, b"MIG-b": 2}.get(uuid, 0)
        return 0 if handle._obj.value else 6

    def nvmlDeviceGetUtilizationRates(self, handle: ctypes.c_void_p, rates: Any) -> int:  # noqa: N802 - its name in the library
        rates._obj.gpu = 75
        return 0 if handle.value == 1 else 3

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:  # noqa: N802 - its name in the library
        memory._obj.total, memory._obj.used = 16 * GIB, 5 * GIB
        return 999 if self._memory_fails else 0


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_EVERY", 0.001)
    monkeypatch.setattr(usage, "_REST", 0)


def test_what_the_driver_tells_and_what_it_does_not() -> None:
    whole, part, missing = usage.Library(["GPU-a", "MIG-b", "GPU-gone"], Paper()).look()
    assert whole == (0.75, 5 * GIB, 16 * GIB)
    assert (str(part[0]), part[1:]) == ("nan", (5 * GIB, 16 * GIB))
    assert [str(each) for each in missing] == ["nan"] * 3


def test_without_library_or_driver_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(usage.NoDriver, match="driver"):
        usage.Library(["GPU-a"], Paper(driver=False))
    monkeypatch.setattr(usage, "LIBRARIES", ["libtrainshed-there-is-none.so.1"])
    with pytest.raises(usage.NoDriver, match="libnvidia-ml"):
        usage.Library(["GPU-a"])


@pytest.mark.usefixtures("_quick")
def test_a_library_that_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same over real calls: types and structures are those of C."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc) to make a library with")
    made = tmp_path / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source], check=True)
    monkeypatch.setattr(usage, "LIBRARIES", ["libtrainshed-there-is-none.so.1", str(made)])
    watch = usage.GpuWatcher(["GPU-a", "MIG-b"])
    until(lambda: watch.read() and (watch.read()[0].busy or 0) > 0)
    whole, part = watch.read()
    watch.close()
    assert (whole.used, whole.total, whole.peak) == (5 * GIB, 16 * GIB, 5 * GIB)
    assert (part.busy, part.used, part.total) == (None, GIB, 16 * GIB)
