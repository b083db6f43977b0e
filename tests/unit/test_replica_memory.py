"""Holding a memory limit by looking, and who died of it (spec/failures#out-of-memory)."""

import signal
from collections.abc import Callable

import pytest

from trainshed.replica import protocol
from trainshed.replica.supervisor.memory_limit import MemoryLimit
from trainshed.replica.system import loop, processes
from trainshed.replica.system.cgroups import ControlGroups

GUARDIAN, MAIN, CHILD = 10, 11, 12
LIMIT = 1000


class Clock(loop.Loop):
    """Moments of a time of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def after(self, seconds: float, handler: Callable[[], None]) -> None:
        self.due.append((self.now + seconds, handler))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.due and min(at for at, _ in self.due) <= end:
            moment = min(self.due, key=lambda moment: moment[0])
            self.due.remove(moment)
            self.now = max(self.now, moment[0])
            moment[1]()
        self.now = end


class Host:
    """A process table that the test writes, in place of the machine's."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.sizes = {MAIN: 100, CHILD: 100}
        self.own: dict[int, int] = {}
        self.dying: set[int] = set()
        self.killed: list[int] = []
        self.ended = False
        patch.setattr("time.monotonic", lambda: self.clock.now)
        patch.setattr(processes, "resident", self._resident)
        patch.setattr(processes, "own_memory", self._own_memory)
        patch.setattr(processes, "oldest_child", self._oldest_child)
        patch.setattr(processes, "is_dying", self.dying.__contains__)
        patch.setattr(processes, "send", self._send)
        patch.setattr(protocol, "process_start", self._start)
        self.memory = MemoryLimit(
            groups=ControlGroups(protocol.Limits()),
            limit=LIMIT,
            polled=False,
            guardian=GUARDIAN,
            events=self.clock,
            has_ended=lambda: self.ended,
        )
        self.memory.program_started()

    def _resident(self, guardian: int) -> dict[int, int]:
        assert guardian == GUARDIAN
        return dict(self.sizes)

    def _own_memory(self, process: int) -> int:
        return self.own.get(process, -1)

    def _oldest_child(self, guardian: int) -> int:
        assert guardian == GUARDIAN
        return MAIN

    def _start(self, process: int) -> int:
        return process if process in self.sizes else 0

    def _send(self, process: int, number: int) -> None:
        assert number == signal.SIGKILL
        self.killed.append(process)
        self.dying.add(process)

    def gone(self, process: int) -> None:
        del self.sizes[process]
        self.dying.discard(process)

    def verdict(self, killed_by: int | None) -> tuple[bool, int]:
        self.memory.close()
        return self.memory.verdict(killed_by)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_the_largest_goes_and_a_main_process_that_does_ran_out_of_memory(host: Host) -> None:
    host.sizes[MAIN] = 2000
    host.clock.run(0.6)
    assert host.killed == [MAIN]
    host.gone(MAIN)
    assert host.verdict(signal.SIGKILL) == (True, 0)


def test_a_child_that_goes_leaves_the_verdict_to_the_main_process(host: Host) -> None:
    host.sizes[CHILD] = 2000
    host.clock.run(0.6)
    assert host.killed == [CHILD]
    host.gone(CHILD)
    host.clock.run(1)
    assert host.verdict(signal.SIGKILL) == (False, 1), "a kill long after that is another matter"
    assert host.verdict(None) == (False, 1)


def test_what_is_shared_and_files_count_as_control_groups_would_count_them(host: Host) -> None:
    host.sizes = {MAIN: 900, CHILD: 900}
    host.own = {MAIN: 450, CHILD: 450}
    host.clock.run(10)
    assert host.killed == []


def test_a_drill_is_an_oom_only_if_the_main_process_died_of_it(host: Host) -> None:
    """spec/operations#drills: an OOM on demand."""
    host.memory.drill()
    assert host.verdict(signal.SIGKILL) == (True, 0)
    assert host.verdict(signal.SIGTERM) == (False, 0)
    assert host.verdict(None) == (False, 0)
