"""What a replica uses, written down beside its log (spec/program#usage): looks at real processes and at made
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
PATIENCE = 60.0
SECOND = 10**9
COMPUTED = 0.25
"""Seconds that the program has surely computed: a little less than it says, since time is told in ticks."""
SHARE = usage._IDLE_FACTOR  # pyright: ignore[reportPrivateUsage] - which most tests do without
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
        """Until the shim has waited for it; the shim itself is left to be waited for."""
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


class Look:
    """A replica's usage, with all that it is made of."""

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
        """The first look of which it is true."""
        deadline = time.monotonic() + PATIENCE
        while True:
            last = self.entries()[-1]
            if "at" in last and true(last):
                return last
            assert time.monotonic() < deadline, last
            self.loop.turn(1000)


@pytest.fixture(autouse=True)
def _tireless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_IDLE_FACTOR", 0)


@linux
def test_processes_are_added_up_where_no_control_group_counts(tmp_path: Path, shim: Shim) -> None:
    look = Look(tmp_path, shim.pid)
    look.usage.begin(5 * SECOND)
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
def test_control_groups_count_without_cached_files(tmp_path: Path, version: int) -> None:
    """What the kernel could give away any moment is not what a program needs."""
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
        (memory / "memory.stat").write_text(
            f"anon 1\ninactive_file {300 * MIB}\nactive_file {100 * MIB}\n"
        )
        (cpu / "cpu.stat").write_text("usage_usec 7000000\nuser_usec 1\n")
    look = Look(tmp_path, 1 << 22, memory, cpu)
    look.usage.begin(1)
    look_at_it = look.until(lambda last: True)
    assert (look_at_it["memory"], look_at_it["cpu"]) == (500 * MIB, 7.0)


def test_the_next_incarnation_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    """spec/failures#lost-replicas: a replica that is restarted in place keeps what is known of it."""
    (tmp_path / usage.FILE).write_text('{"started": 1, "incarnation": 1}\n{"at": 2, "cp')
    look = Look(tmp_path, 1 << 22)
    look.usage.begin(5)
    first, last = (tmp_path / usage.FILE).read_text().splitlines()
    assert [json.loads(line)["started"] for line in (first, last)] == [1, 5]


def test_a_job_of_two_days_leaves_a_small_file_with_all_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Look(tmp_path, 1 << 22)
    clock = [0]
    monkeypatch.setattr(time, "monotonic", lambda: float(clock[0]))
    monkeypatch.setattr("trainshed.replica.observe.segments.now", lambda: clock[0] * SECOND)
    monkeypatch.setattr(processes, "parents", dict)
    look.usage.begin(0)
    length = 2 * 24 * 3600
    for clock[0] in range(10, length, 10):
        look.usage._look()  # pyright: ignore[reportPrivateUsage] - what the loop calls
    times = [entry["at"] // SECOND for entry in look.entries()[1:]]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(times) < 4200
    # All are there of the first hours, and later none is further from the next than a thousandth of its age.
    assert times[:1000] == [*range(10, 10010, 10)]
    assert max(gaps) <= length / 1000 + 10 and times[-1] >= length - max(gaps)


def test_a_dear_look_is_followed_by_a_long_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most a thousandth of a processor."""
    pauses: list[float] = []

    class Listening(Loop):
        def after(self, seconds: float, handler: Callable[[], None]) -> None:
            pauses.append(seconds)

    monkeypatch.setattr(f"{__name__}.Loop", Listening)
    monkeypatch.setattr(usage, "_IDLE_FACTOR", SHARE)
    look = Look(tmp_path, 1 << 22)
    clock = iter([0.0, 0.05])
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    look.usage.begin(1)
    look.usage._look()  # pyright: ignore[reportPrivateUsage] - what the loop calls
    assert pauses == [0.01, pytest.approx(50.0)]
