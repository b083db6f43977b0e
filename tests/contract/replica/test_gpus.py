"""GPUs of real replicas (spec/machines#gpus): the visible device files and the usage of the
replica's own GPUs."""

import json
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.replica.conftest import WAIT_TIMEOUT, Place
from trainshed.engines.local import spawner
from trainshed.replica import protocol
from trainshed.replica.observe import usage

GIB = 1 << 30
_SOURCE = Path(__file__).with_name("fake_nvml.c")


@pytest.fixture
def zygote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[spawner.ZygoteHandle]:
    """A zygote with a fake driver library that this test compiles."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler (cc) to make a driver's library with")
    place = tmp_path / "driver"
    place.mkdir()
    made = place / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, _SOURCE], check=True)
    popen = subprocess.Popen

    def finds_it(*arguments: Any, env: dict[str, str], **options: Any) -> Any:
        return popen(*arguments, env=env | {"LD_LIBRARY_PATH": str(place)}, **options)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", finds_it)
        handle = spawner.start()
    yield handle
    handle.close()


def entries(place: Place) -> list[dict[str, Any]]:
    # The last line may be incomplete.
    whole, _, _ = (place.logs / usage.FILE).read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def run(place: Place, program: str, *gpus: str, **fields: object) -> Any:
    return place.python(program, gpus=gpus, usage_every=0.05, **fields)


def test_usage_of_a_replicas_own_gpus_is_measured(place: Place) -> None:
    """spec/machines#gpus. The second of the library's two GPUs does not report its usage."""
    line = run(place, "import time; print(1, flush=True); time.sleep(99)", "GPU-a", "MIG-b")
    place.up(line)
    deadline = time.monotonic() + WAIT_TIMEOUT
    # The second measurement is the first that covers a period.
    while not any(gpu[0] for entry in entries(place) if "at" in entry for gpu in entry["gpus"]):
        assert time.monotonic() < deadline
        line.order(o="ping", n=1)
        line.hear("pong")
    line.order(o="stop", grace=0)
    line.record()
    first, *_, last = entries(place)
    assert first["gpus"] == ["GPU-a", "MIG-b"]
    whole, part = last["gpus"]
    assert whole[0] > 0 and whole[1:] == [5 * GIB, 16 * GIB, 5 * GIB, 61]
    assert part == [None, GIB, 16 * GIB, GIB, None]


_OPENS = """
import os, stat

def attempt(path):
    try:
        os.close(os.open(path, os.O_RDONLY))
        return "open"
    except OSError as refused:
        return refused.strerror

print(attempt(own), attempt(other), attempt("/proc/1/root" + other), sep="|")
try:
    os.mknod("made", stat.S_IFCHR | 0o666, number)
    print(attempt("made"))
except OSError:
    print("not made")
"""


@pytest.fixture
def devices() -> Iterator[tuple[str, str]]:
    """Two device files that every user may open, like those of GPUs."""
    try:
        paths = [f"/dev/trainshed-{os.getpid()}-gpu{number}" for number in range(2)]
        for path in paths:
            os.mknod(path, stat.S_IFCHR, os.makedev(1, 5))
            Path(path).chmod(0o666)
    except PermissionError:
        pytest.skip("this user makes no devices")
    yield paths[0], paths[1]
    for path in paths:
        Path(path).unlink()


def test_program_cannot_open_a_gpu_of_another_replica(place: Place, devices: tuple[str, str]) -> None:
    """spec/machines#gpus: the program can open a foreign GPU neither by its file, nor through its
    shim's view, nor by a device file of the same number."""
    if place.level == protocol.LEVEL_SESSION:
        pytest.skip("without namespaces all devices are to be seen")
    own, other = devices
    facts = f"own, other, number = {own!r}, {other!r}, {Path(other).stat().st_rdev}"
    assert place.python(f"{facts}\n{_OPENS}", devices=[own]).record()["exit_code"] == 0
    by_path, by_number = place.texts()
    missing = "No such file or directory"
    assert by_path.split("|")[:2] == ["open", missing]
    if place.level != protocol.LEVEL_ROOT:
        # Root is not restricted (docs/security.md).
        assert (by_path.split("|")[2], by_number) == ("Permission denied", "not made")
