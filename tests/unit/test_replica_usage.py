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
from types import SimpleNamespace
from typing import Any

import pytest

from trainshed.replica.observe import gpus, growing_files, usage
from trainshed.replica.system import processes
from trainshed.replica.system.loop import Loop

MIB = 1 << 20
PATIENCE = 20.0
SECOND = 10**9
COMPUTED = 0.25
"""Seconds that the program has surely computed: a little less than it says, since time is told in ticks."""
SHARE = usage._SHARE  # pyright: ignore[reportPrivateUsage] - which most tests do without
_GUARDIAN = """
import os, subprocess, sys
program = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
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


class Guardian:
    """A process with one child that holds 64 MiB and has computed for a third of a second."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _GUARDIAN, _PROGRAM]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.program = int(self.process.stdout.readline())

    @property
    def pid(self) -> int:
        return self.process.pid

    def end_program(self) -> None:
        """Until the guardian has waited for it; the guardian itself is left to be waited for."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.stdout.read(1) == b"x"

    def wait(self) -> Any:
        _, status, used = os.wait4(self.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        return used


@pytest.fixture
def guardian() -> Iterator[Guardian]:
    made = Guardian()
    yield made
    if made.process.poll() is None:
        processes.send(made.program, signal.SIGKILL)
        made.process.kill()
        made.process.wait()


class Watched:
    """GPUs of paper."""

    def __init__(self, uuids: list[str]) -> None:
        self.uuids = uuids
        self.closed = False

    def read(self) -> list[gpus.Gpu]:
        return [gpus.Gpu(1.5, 2.0, 16.0, 3.0) for _ in self.uuids]

    def close(self) -> None:
        self.closed = True


class Look:
    """A replica's usage, with all that it is made of."""

    def __init__(
        self,
        logs: Path,
        guardian: int,
        *groups: Path,
        gpus: tuple[str, ...] = (),
        watch: Callable[[Any], Any] | None = None,
    ) -> None:
        self.path = logs / usage.FILE
        self.loop = Loop()
        self.watched: list[Watched] = []
        self.usage = usage.Usage(
            str(logs),
            1,
            every=0.01,
            limit=512 * MIB,
            gpus=gpus,
            directories=[str(group) for group in groups],
            guardian=guardian,
            events=self.loop,
            watch=watch or self._watch,
        )

    def _watch(self, uuids: Any) -> Any:
        self.watched.append(Watched(list(uuids)))
        return self.watched[-1]

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


def spent(memory: int = 0, cpu: float = 0.0) -> Any:
    """What `wait4` says."""
    return SimpleNamespace(ru_maxrss=memory >> 10, ru_utime=cpu, ru_stime=0.0)


@pytest.fixture(autouse=True)
def _tireless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_SHARE", 0)


@linux
def test_processes_are_added_up_where_no_control_group_counts(
    tmp_path: Path, guardian: Guardian
) -> None:
    look = Look(tmp_path, guardian.pid)
    look.usage.begin(5 * SECOND)
    found = look.until(lambda last: last["cpu"] >= COMPUTED and last["memory"] > 64 * MIB)
    assert (found["processes"], found["gpus"]) == (1, [])
    assert found["peak"] >= found["memory"]
    guardian.end_program()
    look.usage.stop()
    look.usage.seal(guardian.wait())
    first, *_, last = look.entries()
    assert first == {
        "started": 5 * SECOND,
        "incarnation": 1,
        "limit": 512 * MIB,
        "cpus": len(os.sched_getaffinity(0)),
        "gpus": [],
    }
    assert last["last"] and last["cpu"] >= found["cpu"] and last["peak"] >= found["peak"]


@linux
def test_of_a_program_that_is_over_before_the_first_look_the_end_is_known(
    tmp_path: Path, guardian: Guardian
) -> None:
    look = Look(tmp_path, guardian.pid)
    look.usage.begin(5 * SECOND)
    deadline = time.monotonic() + PATIENCE
    while processes.used(guardian.pid)[0] < COMPUTED:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    guardian.end_program()
    look.usage.stop()
    look.usage.seal(guardian.wait())
    _, last = look.entries()
    assert last["last"] and last["cpu"] >= COMPUTED and last["peak"] > 64 * MIB


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
    found = look.until(lambda last: True)
    assert (found["memory"], found["cpu"]) == (500 * MIB, 7.0)


def test_the_peak_is_the_most_of_all_looks_and_of_any_single_process(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text(str(100 * MIB))
    (tmp_path / "memory.stat").write_text("")
    look = Look(tmp_path, 1 << 22, tmp_path)
    look.usage.begin(1)
    look.until(lambda last: last["peak"] == 100 * MIB)
    (tmp_path / "memory.current").write_text(str(40 * MIB))
    look.until(lambda last: last["memory"] == 40 * MIB and last["peak"] == 100 * MIB)
    look.usage.stop()
    look.usage.seal(spent(memory=300 * MIB))
    assert look.entries()[-1]["peak"] == 300 * MIB


def test_gpus_of_its_own_are_looked_at_until_the_end(tmp_path: Path) -> None:
    look = Look(tmp_path, 1 << 22, gpus=("GPU-a", "GPU-b"))
    look.usage.begin(1)
    found = look.until(lambda last: True)
    assert found["gpus"] == [[1.5, 2, 16, 3]] * 2
    assert look.entries()[0]["gpus"] == ["GPU-a", "GPU-b"]
    look.usage.stop()
    assert [(each.uuids, each.closed) for each in look.watched] == [(["GPU-a", "GPU-b"], True)]
    look.usage.seal(spent())
    assert look.entries()[-1]["gpus"] == [[1.5, 2, 16, 3]] * 2


def test_where_nobody_can_be_forked_the_rest_is_still_told(tmp_path: Path) -> None:
    """Into a namespace whose first process has ended the kernel lets no one be forked."""

    def refused(uuids: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    look = Look(tmp_path, 1 << 22, gpus=("GPU-a",), watch=refused)
    look.usage.begin(1)
    look.usage.stop()
    look.usage.seal(spent(memory=300 * MIB))
    last = look.entries()[-1]
    assert (last["peak"], last["gpus"], last["last"]) == (300 * MIB, [], True)


def test_a_replica_without_gpus_has_nobody_look_for_them(tmp_path: Path) -> None:
    look = Look(tmp_path, 1 << 22)
    look.usage.begin(1)
    look.usage.stop()
    assert look.watched == []


def test_the_next_incarnation_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    """spec/failures#lost-replicas: a replica that is restarted in place keeps what is known of it."""
    (tmp_path / usage.FILE).write_text('{"started": 1, "incarnation": 1}\n{"at": 2, "cp')
    look = Look(tmp_path, 1 << 22)
    look.usage.begin(5)
    entries = growing_files.read_lines((tmp_path / usage.FILE).read_text())
    assert [entry["started"] for entry in entries] == [1, 5]


def test_what_cannot_be_written_hurts_nobody(tmp_path: Path) -> None:
    look = Look(tmp_path / "nowhere", 1 << 22, gpus=("GPU-a",))
    look.usage.begin(1)
    look.loop.turn(0)
    look.usage.stop()
    look.usage.seal(spent())
    assert not (tmp_path / "nowhere").exists()


def test_a_replica_that_never_ran_leaves_nothing(tmp_path: Path) -> None:
    look = Look(tmp_path, 1 << 22)
    look.usage.stop()
    look.usage.seal(spent())
    assert list(tmp_path.iterdir()) == []


def a_week() -> Iterator[dict[str, Any]]:
    yield {"started": 0, "incarnation": 1, "limit": 1, "cpus": 1, "gpus": []}
    for number in range(1, 7 * 24 * 360):
        yield {"at": number * 10 * SECOND, "cpu": number / 2.0}


def test_a_job_of_a_week_leaves_a_small_file_with_all_of_its_time() -> None:
    entries: list[dict[str, Any]] = []
    for entry in a_week():
        entries.append(entry)
        if len(entries) > growing_files.MOST_LINES:
            entries = growing_files.thinned(entries)
    assert len(entries) <= growing_files.MOST_LINES
    assert "started" in entries[0]
    times = [entry["at"] for entry in entries[1:]]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times == sorted(times)
    # No hole is longer than three quarters of an hour, and what is new is there in full.
    assert max(gaps) < 2700 * SECOND
    assert set(gaps[-400:]) == {10 * SECOND}


def test_thinning_leaves_starts_and_ends() -> None:
    lives: list[dict[str, Any]] = []
    for life in range(3):
        lives.append({"started": life * 1000, "incarnation": life + 1})
        lives += [{"at": life * 1000 + n} for n in range(900)]
        lives.append({"at": life * 1000 + 900, "last": True})
    kept = growing_files.thinned(lives)
    assert [e["incarnation"] for e in kept if "started" in e] == [1, 2, 3]
    assert [e["at"] for e in kept if e.get("last")] == [900, 1900, 2900]


def test_a_full_file_is_thinned_out_while_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing_files, "MOST_LINES", 20)
    monkeypatch.setattr(growing_files, "_NEWEST", 5)
    monkeypatch.setattr(growing_files, "_SPREAD", 5)
    look = Look(tmp_path, 1 << 22)
    look.usage.begin(1)
    grown = 0
    deadline = time.monotonic() + PATIENCE
    while len(look.entries()) >= grown:
        grown = len(look.entries())
        assert grown <= 20 and time.monotonic() < deadline
        look.loop.turn(1000)
    assert look.entries()[0]["started"] == 1
    assert [path.name for path in tmp_path.iterdir()] == [usage.FILE]
    look.until(lambda last: True)
    look.usage.stop()
    look.usage.seal(spent())
    assert look.entries()[-1]["last"]


def test_a_dear_look_is_followed_by_a_long_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most a thousandth of a processor."""
    pauses: list[float] = []

    class Listening(Loop):
        def after(self, seconds: float, handler: Callable[[], None]) -> None:
            pauses.append(seconds)

    monkeypatch.setattr(f"{__name__}.Loop", Listening)
    monkeypatch.setattr(usage, "_SHARE", SHARE)
    look = Look(tmp_path, 1 << 22)
    clock = iter([0.0, 0.05])
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    look.usage.begin(1)
    look.usage._look()  # pyright: ignore[reportPrivateUsage] - what the loop calls
    assert pauses == [0.01, pytest.approx(50.0)]
