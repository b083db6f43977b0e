"""Tests of the records of a replica's resource usage (spec/program#usage), with real processes and simulated
control groups."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainshed.replica import protocol
from trainshed.replica.observe import usage
from trainshed.replica.system import processes
from trainshed.replica.system.loop import Loop

MIB = 1 << 20
TEST_TIMEOUT = 60.0
SECOND = 10**9
COMPUTED = 0.25
"""Minimum processor seconds of the program, less than its own count, because times are measured in ticks."""
IDLE_FACTOR = usage._IDLE_FACTOR  # pyright: ignore[reportPrivateUsage] - which most tests do without
_SHIM = """
import os, subprocess, sys
program = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
print(program.pid, flush=True)
sys.stdin.read()
program.kill()
program.wait()
sys.stdout.write("x")
sys.stdout.flush()
"""
_PROGRAM = """
import time
held = bytearray(64 << 20)
held[::4096] = b"x" * len(held[::4096])
while time.process_time() < 0.3:
    pass
time.sleep(1000)
"""
linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc tells it")


class Shim:
    """A process with one child that holds 64 MiB and has computed for a third of a second."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _SHIM, _PROGRAM]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.program = int(self.process.stdout.readline())

    @property
    def pid(self) -> int:
        return self.process.pid

    def end_program(self) -> None:
        """End the child and wait until the process has reaped it. The process itself stays."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.stdout.read(1) == b"x"

    def wait(self) -> Any:
        _, status, used = os.wait4(self.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        return used


@pytest.fixture
def shim() -> Iterator[Shim]:
    made = Shim()
    yield made
    if made.process.poll() is None:
        processes.send(made.program, signal.SIGKILL)
        made.process.kill()
        made.process.wait()


class UsageFixture:
    """A replica's usage and all its inputs."""

    def __init__(self, logs: Path, shim: int, *groups: Path) -> None:
        self.path = logs / usage.FILE
        self.loop = Loop()
        self.usage = usage.Usage(
            protocol.LaunchDocument.from_message(
                {
                    "incarnation": 1,
                    "argv": [],
                    "environ": {},
                    "logs": str(logs),
                    "memory_limit": 512 * MIB,
                    "usage_every": 0.01,
                }
            ),
            [str(group) for group in groups],
            shim,
            self.loop,
        )

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def until(self, true: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Return the first entry for which `true` returns True."""
        deadline = time.monotonic() + TEST_TIMEOUT
        while True:
            last = self.entries()[-1]
            if "at" in last and true(last):
                return last
            assert time.monotonic() < deadline, last
            self.loop.turn(1000)


@pytest.fixture(autouse=True)
def _remove_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_IDLE_FACTOR", 0)


@linux
def test_usage_is_the_sum_over_processes_on_a_machine_without_control_groups(
    tmp_path: Path, shim: Shim
) -> None:
    look = UsageFixture(tmp_path, shim.pid)
    look.usage.start(5 * SECOND)
    look_at_it = look.until(lambda last: last["cpu"] >= COMPUTED and last["memory"] > 64 * MIB)
    assert (look_at_it["processes"], look_at_it["gpus"]) == (1, [])
    assert look_at_it["peak"] >= look_at_it["memory"]
    shim.end_program()
    look.usage.stop()
    look.usage.seal(shim.wait())
    first, *_, last = look.entries()
    assert first == {
        "started": 5 * SECOND,
        "incarnation": 1,
        "limit": 512 * MIB,
        "cpus": len(os.sched_getaffinity(0)),
        "gpus": [],
    }
    assert last["last"] and last["cpu"] >= look_at_it["cpu"] and last["peak"] >= look_at_it["peak"]


@pytest.mark.parametrize("version", [1, 2])
def test_memory_of_a_control_group_excludes_cached_files(tmp_path: Path, version: int) -> None:
    """The kernel can free cached files at any time."""
    memory, cpu = tmp_path / "memory", tmp_path / "cpu"
    memory.mkdir()
    cpu.mkdir()
    if version == 1:
        (memory / "memory.usage_in_bytes").write_text(f"{900 * MIB}\n")
        (memory / "memory.stat").write_text(
            f"cache 1\ninactive_file 7\ntotal_inactive_file {300 * MIB}\ntotal_active_file {100 * MIB}\n"
        )
        (cpu / "cpuacct.usage").write_text(f"{7 * SECOND}\n")
    else:
        (memory / "memory.current").write_text(f"{900 * MIB}\n")
        (memory / "memory.stat").write_text(f"anon 1\ninactive_file {300 * MIB}\nactive_file {100 * MIB}\n")
        (cpu / "cpu.stat").write_text("usage_usec 7000000\nuser_usec 1\n")
    look = UsageFixture(tmp_path, 1 << 22, memory, cpu)
    look.usage.start(1)
    look_at_it = look.until(lambda last: True)
    assert (look_at_it["memory"], look_at_it["cpu"]) == (500 * MIB, 7.0)


def test_usage_records_continue_after_an_incomplete_last_line(tmp_path: Path) -> None:
    """spec/failures#lost-replicas: A replica that is restarted in place keeps its records."""
    (tmp_path / usage.FILE).write_text('{"started": 1, "incarnation": 1}\n{"at": 2, "cp')
    look = UsageFixture(tmp_path, 1 << 22)
    look.usage.start(5)
    first, last = (tmp_path / usage.FILE).read_text().splitlines()
    assert [json.loads(line)["started"] for line in (first, last)] == [1, 5]


def test_usage_file_of_a_long_job_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = UsageFixture(tmp_path, 1 << 22)
    clock = [0]
    monkeypatch.setattr(time, "monotonic", lambda: float(clock[0]))
    monkeypatch.setattr("trainshed.replica.observe.segments.now", lambda: clock[0] * SECOND)
    monkeypatch.setattr(processes, "parents", dict)
    look.usage.start(0)
    length = 2 * 24 * 3600
    for clock[0] in range(10, length, 10):
        look.usage._measure()  # pyright: ignore[reportPrivateUsage] - what the loop calls
    times = [entry["at"] // SECOND for entry in look.entries()[1:]]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(times) < 4200
    # All entries of the first hours exist. Later, two entries are at most a thousandth of their age apart.
    assert times[:1000] == [*range(10, 10010, 10)]
    assert max(gaps) <= length / 1000 + 10 and times[-1] >= length - max(gaps)


def test_slow_usage_measurement_is_followed_by_a_long_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measuring uses at most a thousandth of a processor."""
    pauses: list[float] = []

    class Listening(Loop):
        def after(self, seconds: float, handler: Callable[[], None]) -> None:
            pauses.append(seconds)

    monkeypatch.setattr(f"{__name__}.Loop", Listening)
    monkeypatch.setattr(usage, "_IDLE_FACTOR", IDLE_FACTOR)
    look = UsageFixture(tmp_path, 1 << 22)
    clock = iter([0.0, 0.05])
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    look.usage.start(1)
    look.usage._measure()  # pyright: ignore[reportPrivateUsage] - what the loop calls
    assert pauses == [0.01, pytest.approx(50.0)]
