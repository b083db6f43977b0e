"""Runs a task with the processes of one side. It measures times, bytes and CPU time, and checks the
results."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.reduction.cases import Task
from bench.reduction.network import Host, Traffic
from bench.reduction.processes import Answer, Doing, Processes, SideFailed
from trainshed_reduction.variables import SMALLEST_BYTES

AHEAD = 0.01
"""Seconds between the command and the common start of an operation, so that all ranks are ready."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The results of a task in one round. Times and bytes are means over workers and operations unless stated
    otherwise.

    `seconds`: of each operation, until the last rank had its result. `sent`, `sent_on_wire`: bytes that left
    a worker, see `Traffic`. `worker_seconds`: CPU seconds of a worker. `reducer_seconds`: CPU seconds of all
    reducers together. `busy`: CPU utilization of the machine. `ordered`: whether every result was bit by bit
    the sum in the order of ranks. `largest`, `rms`: of the error. `digests`: of the results. `losses`,
    `parameters`: of training.
    """

    seconds: list[float]
    sent: float
    sent_on_wire: float
    worker_seconds: float
    reducer_seconds: float
    busy: float
    ordered: bool
    largest: float
    rms: float
    digests: list[str]
    losses: list[float] = field(default_factory=list[float])
    parameters: float = 0.0


class Series:
    """Operations of one task, one after another. The first `warm_up` operations do not count."""

    def __init__(
        self, processes: Processes, hosts: Sequence[Host], task: Task, first: int, *, exact: bool = True
    ) -> None:
        """`hosts`: the hosts of the workers. `first`: number of the first operation, which determines the
        data. `exact`: whether reducers must return the sum in the order of ranks."""
        self._exact = exact
        self._processes = processes
        self._hosts = hosts
        self._task = task
        self._number = first
        self.checks: list[list[Answer]] = []
        self.seconds: list[float] = []
        self._worker_seconds: list[float] = []
        self._busy = [0, 0]
        kind = "all-reduce" if task.dtype else "training"
        words = {"dtype": task.dtype} if task.dtype else {"bucket": task.bucket}
        processes.ask(do="take", kind=kind, nbytes=task.nbytes, **words)

    def operation(self, doings: "Sequence[Doing]" = (), *, counts: bool = True) -> float:
        """Run one operation and return its seconds. `doings`: actions, each at a number of seconds after the
        start. Raises SideFailed if the side crashes, hangs, or returns a wrong result."""
        ask = self._processes.ask
        ask(do="prepare", number=self._number)
        self._number += 1
        at = time.monotonic() + AHEAD
        begun = _ticks()
        self._processes.tell(do="go", at=at)
        moments = [Doing(at + doing.at, doing.do) for doing in doings]
        seconds = max(answer["seconds"] for answer in self._processes.answers(moments))
        ended = _ticks()
        checked = ask(do="check")
        self._judge(checked)
        if counts:
            self.seconds.append(seconds)
            self.checks.append(checked)
            self._worker_seconds += [answer["processor"] for answer in checked]
            self._busy = [have + now - then for have, now, then in zip(self._busy, ended, begun, strict=True)]
        return seconds

    def warm_up(self, count: int) -> None:
        for _ in range(count):
            self.operation(counts=False)

    def run(self, warm_up: int = 1) -> Sample:
        """Run all operations. No other side may use these hosts at the same time."""
        self.warm_up(warm_up)
        before = [host.traffic() for host in self._hosts]
        reducers = self._processes.reducer_seconds()
        for _ in range(self._task.count):
            self.operation()
        reducers = self._processes.reducer_seconds() - reducers
        traffic = [host.traffic().since(then) for host, then in zip(self._hosts, before, strict=True)]
        return self.sample(traffic, reducers)

    def sample(self, traffic: Sequence[Traffic] = (), reducers: float = 0.0) -> Sample:
        """Return the sample of all counted operations. `traffic`: traffic of the workers during the
        operations. `reducers`: CPU seconds of the reducers. Both are None if other sides ran in the same
        period."""
        host_operations = len(self._hosts) * self._task.count
        first = [checks[0] for checks in self.checks]
        return Sample(
            self.seconds,
            sum(worker_traffic.sent for worker_traffic in traffic) / host_operations,
            sum(worker_traffic.sent_on_wire for worker_traffic in traffic) / host_operations,
            sum(self._worker_seconds) / host_operations,
            reducers / self._task.count,
            self._busy[0] / max(1, self._busy[1]),
            all(answer.get("ordered", False) for answer in first),
            max(answer.get("largest", 0.0) for answer in first),
            max(answer.get("rms", 0.0) for answer in first),
            [answer["digest"] for answer in first],
            [answer["loss"] for answer in first if "loss" in answer],
            first[-1].get("parameters", 0.0),
        )

    def _judge(self, checked: Sequence[Answer]) -> None:
        """Raise SideFailed if a result is wrong."""
        name, number = f"{self._processes.side.name}, {self._task.title}", self._number - 1
        if len({answer["digest"] for answer in checked}) > 1:
            raise SideFailed(f"{name}: operation {number} gave the ranks different results")
        first = checked[0]
        if "largest" not in first:
            return
        if not first["largest"] <= first["tolerance"]:
            raise SideFailed(
                f"{name}: operation {number} is wrong by {first['largest']:.3g}; {first['tolerance']:.3g} "
                "is the maximum rounding error"
            )
        if (
            self._processes.side.reduces
            and self._exact
            and self._task.nbytes >= SMALLEST_BYTES
            and not first["ordered"]
        ):
            raise SideFailed(f"{name}: operation {number} is not the sum in the order of ranks, bit by bit")


def _ticks() -> list[int]:
    """Return (busy, all) clock ticks of all CPUs. Work with a nice value counts as idle time."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    user, _, system, _, _, interrupts, soft, _ = map(int, words[1:9])
    return [user + system + interrupts + soft, sum(map(int, words[1:9]))]
