"""Runs a case, from the creation of the network to the samples: every side in turn, in separate processes, in
several rounds."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import report
from bench.reduction.cases import Case, Task
from bench.reduction.measuring import Sample, Series
from bench.reduction.network import CannotRun, Network
from bench.reduction.processes import Processes, SideFailed
from bench.reduction.sides import Side, Surroundings, new_token
from trainshed_reduction.variables import SMALLEST_BYTES

LIMIT = 120.0
"""Maximum seconds for a response of the workers."""
APART = 1000
"""Difference between the first operation numbers of two rounds."""

TURN = 4
"""Number of operations of one side before the next side's turn. After a pause, links take a while to fill."""

Round = Mapping[str, Mapping[str, Sample]]
"""Samples by side and task."""


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a case. `about`: the machine and the versions of the programs."""

    case: str
    about: Mapping[str, Any]
    rounds: Sequence[Round]

    def samples(self, side: str, task: Task) -> list[Sample]:
        return [by_side[side][task.key] for by_side in self.rounds if task.key in by_side.get(side, {})]

    def keep(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{self.case}.json").write_text(json.dumps(asdict(self), indent=1), "utf-8")


def load(directory: Path, case: str) -> Results | None:
    """Return the stored results of the case's last run, or None without a run of this version."""
    try:
        words = json.loads((directory / f"{case}.json").read_text("utf-8"))
        rounds = [
            {
                side: {key: Sample(**fields) for key, fields in tasks.items()}
                for side, tasks in by_side.items()
            }
            for by_side in words["rounds"]
        ]
        return Results(words["case"], words["about"], rounds)
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Bench:
    """`python`: an interpreter with PyTorch. `package`: a directory for PYTHONPATH."""

    def __init__(self, python: Path, package: Path) -> None:
        self._python = python
        self._package = package
        self.facts: dict[str, Any] = {}
        #: Messages of the distribution in the last run, by side.
        self.said: dict[str, list[str]] = {}

    def network(self, case: Case) -> Network:
        return Network(
            case.workers,
            case.reducers,
            case.rate,
            case.reducer_rate or case.rate,
            slowest=case.slowest,
            delay=case.delay,
            loss=case.loss,
        )

    def processes(self, case: Case, network: Network, side: Side) -> Processes:
        around = Surroundings(
            self._package,
            network.workers,
            network.reducers,
            case.declared_rate or case.rate,
            case.declared_reducer_rate or case.reducer_rate or case.rate,
            new_token(),
        )
        return Processes(side, around, self._python, LIMIT)

    def run(self, case: Case, sides: Sequence[Side], rounds: int) -> Results:
        """Run the case and return its results. Raises CannotRun, SideFailed."""
        finished: list[Round] = []
        began, load = time.time(), os.getloadavg()[0]
        with self.network(case) as network:
            for number in range(rounds):
                # Reverse the order in every second round, so that drift affects all sides.
                order = sides if number % 2 == 0 else tuple(reversed(sides))
                if case.about:
                    finished.append(self._in_turn(case, network, order, number))
                else:
                    finished.append({side.name: self._side(case, network, side, number) for side in order})
        about = {"machine": report.machine(), "began": began, "load": load, **self.facts}
        if case.about:
            about["said"] = dict(self.said)
        return Results(case.name, about, finished)

    def _in_turn(self, case: Case, network: Network, sides: Sequence[Side], number: int) -> Round:
        """Run a few operations of each side in turn, so that the machine's load affects all sides. This
        method cannot measure traffic."""
        (task,) = case.tasks
        with ExitStack() as stack:
            by_side: dict[str, Series] = {}
            for side in sides:
                processes = stack.enter_context(self.processes(case, network, side))
                self.facts[side.name] = processes.ask(do="join")[0]
                first = APART * number
                series = Series(processes, network.workers, task, first, exact=False)
                series.warm_up(case.warm_up if side.reduces else 1)
                self.said[side.name] = processes.messages()
                by_side[side.name] = series
            for _ in range(task.count // TURN):
                for series in by_side.values():
                    for _ in range(TURN):
                        series.operation()
            return {name: {task.key: series.sample()} for name, series in by_side.items()}

    def _side(self, case: Case, network: Network, side: Side, number: int) -> dict[str, Sample]:
        before = [host.traffic() for host in network.reducers]
        with self.processes(case, network, side) as processes:
            facts = processes.ask(do="join")
            self.facts[side.name] = facts[0]
            samples: dict[str, Sample] = {}
            for task in case.tasks:
                series = Series(processes, network.workers, task, APART * number)
                samples[task.key] = series.run(case.warm_up)
            got = sum(
                host.traffic().since(then).received
                for host, then in zip(network.reducers, before, strict=True)
            )
            if side.reduces:
                self._check_that_they_worked(case, side, got, facts[0])
        return samples

    def _check_that_they_worked(
        self, case: Case, side: Side, received: int, facts: Mapping[str, Any]
    ) -> None:
        """Raise SideFailed if the reducers were not used, because a program that falls back to gloo also
        returns correct results."""
        due = max((task.nbytes for task in case.tasks if task.nbytes >= SMALLEST_BYTES), default=0)
        if received < due:
            raise SideFailed(
                f"{side.name}: the reducers got {received} bytes, so the workers do not use them: {facts}"
            )


__all__ = ["Bench", "CannotRun", "Results", "Round", "load"]
