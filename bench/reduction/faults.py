"""The effects of faults: one reducer that is killed during an operation, a hundred kills, and the cost of
fault tolerance."""

import json
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import report
from bench.reduction.cases import MIB, Case, Task
from bench.reduction.measuring import Series
from bench.reduction.processes import Doing, Processes
from bench.reduction.running import Bench
from bench.reduction.sides import Side

ONCE = Case("fault", 4, 4, 200, (Task("64 MiB fp32", 64 * MIB),), 20)
OFTEN = Case("kills", 4, 3, 0, (Task("4 MiB fp32", 4 * MIB),), 120)
STEADY = (
    Case("ready", 4, 4, 500, (Task("64 MiB fp32", 64 * MIB),), 60),
    Case("ready, unshaped", 4, 4, 0, (Task("64 MiB fp32", 64 * MIB),), 20),
)
KILLS = 100
OPERATIONS = 1000
COST = 0.03
ROUNDS = 5
"""Number of operations of both clients to measure the cost of fault tolerance."""
_SEED = 6
_KILL_DELAY = 1.0
"""Seconds from the start of the operation to the kill, and from the kill to the new reducer."""
_CALM = 10
"""Number of operations before the first kill, to estimate the duration of an operation."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of the table of faults. `held`: whether the budget is met; None = the row has no budget.
    `figures`: by name, in seconds unless the name has another unit."""

    what: str
    value: str
    held: bool | None
    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault case. `name`: the value for `--only`. `seconds`: its approximate duration."""

    name: str
    about: str
    seconds: int
    find: Callable[[Bench, Side], list[Finding]]


def once(bench: Bench, side: Side) -> list[Finding]:
    """Kill a reducer with SIGKILL during an operation. A second later, start a new process without state.
    Raises SideFailed."""
    with _series(bench, ONCE, side) as (processes, series):
        series.operation(counts=False)
        before = series.operation()
        during = series.operation(
            [
                Doing(_KILL_DELAY, lambda: processes.kill_reducer(1)),
                Doing(2 * _KILL_DELAY, lambda: processes.start_reducer(1)),
            ]
        )
        after = series.operation()
    return [
        Finding(
            f"{ONCE.title}, {ONCE.tasks[0].title}: reducer killed {_KILL_DELAY:g} s into the operation, "
            f"back {_KILL_DELAY:g} s later",
            f"{during:.2f} s; the one before {before:.2f} s, the one after {after:.2f} s; all results right",
            None,
            {"before": before, "during": during, "after": after},
        )
    ]


def often(bench: Bench, side: Side, kills: int = KILLS, operations: int = OPERATIONS) -> list[Finding]:
    """Kill reducers at random times, spread evenly over the operations, and restart each immediately. Raises
    SideFailed at the first wrong result, or if a worker fails."""
    draw = random.Random(_SEED)
    hit: list[float] = []
    calm: list[float] = []
    with _series(bench, OFTEN, side) as (processes, series):
        usual = median(series.operation() for _ in range(_CALM))
        due = set(range(_CALM, operations, max(1, (operations - _CALM) // kills)))
        done = 0
        for number in range(_CALM, operations):
            if number not in due or done == kills:
                calm.append(series.operation())
                continue
            done += 1
            which, when = draw.randrange(OFTEN.reducers), draw.uniform(0, usual)
            hit.append(
                series.operation(
                    [
                        Doing(when, lambda index=which: processes.kill_reducer(index)),
                        Doing(when, lambda index=which: processes.start_reducer(index)),
                    ]
                )
            )
    figures = {"hit": median(hit), "calm": median(calm), "longest": max(*hit, *calm)}
    times = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in figures.items())
    return [
        Finding(
            f"{done} SIGKILLs of reducers in {operations} operations of {OFTEN.tasks[0].title}, "
            f"{OFTEN.workers} + {OFTEN.reducers}, unshaped",
            f"no wrong result, no worker restarted; median time {times}",
            done >= kills,
            {**figures, "kills": done, "operations": operations},
        )
    ]


def steady(bench: Bench, side: Side, rounds: int = ROUNDS, cases: Sequence[Case] = STEADY) -> list[Finding]:
    """Measure the cost of fault tolerance without faults.

    A client that keeps data which other ranks may need after the loss of a reducer is compared with a client
    that keeps nothing. Both are measured in the same processes, in turn. Work that both clients must do is
    not included: results are received apart from the tensor, and reducers hold nothing. Raises SideFailed.
    """
    findings: list[Finding] = []
    for case in cases:
        seconds: dict[bool, list[float]] = {True: [], False: []}
        with _series(bench, case, side) as (processes, series):
            for number in range(rounds):
                # Reverse the order in every second round, so that drift affects both clients.
                for on in (True, False) if number % 2 == 0 else (False, True):
                    processes.ask(do="keep", on=on)
                    series.operation(counts=False)
                    durations = [series.operation() for _ in range(case.tasks[0].count)]
                    seconds[on].append(median(durations))
        costs = [ready / bare - 1 for ready, bare in zip(seconds[True], seconds[False], strict=True)]
        cost, ready = median(costs), median(seconds[True])
        links = f"{case.rate:g} Mbit/s" if case.rate else "unshaped"
        findings.append(
            Finding(
                f"being ready for faults against a client that keeps nothing for them, {case.workers} + "
                f"{case.reducers}, {links}, {case.tasks[0].title}",
                f"{cost:+.2%} (rounds: {min(costs):+.2%} to {max(costs):+.2%}; an operation takes "
                f"{ready:.2f} s)",
                cost < COST if case.rate else None,
                {"ready": seconds[True], "bare": seconds[False], "costs": costs},
            )
        )
    return findings


FAULTS = (
    Fault("fault", "a reducer killed in the middle of an operation", 25, once),
    Fault("kills", f"{KILLS} kills in {OPERATIONS} operations", 150, often),
    Fault("ready", "what being ready for faults costs", 80, steady),
)


@contextmanager
def _series(bench: Bench, case: Case, side: Side) -> Generator[tuple[Processes, Series]]:
    with bench.network(case) as network, bench.processes(case, network, side) as processes:
        processes.ask(do="join")
        yield processes, Series(processes, network.workers, case.tasks[0], 0)


def keep(directory: Path, name: str, findings: Sequence[Finding]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    words = {"about": {"machine": report.machine(), "began": time.time()}}
    rows = [asdict(finding) for finding in findings]
    (directory / f"{name}.json").write_text(json.dumps({**words, "findings": rows}, indent=1))


def load(directory: Path, name: str) -> list[Finding]:
    """Return the stored result, or None without a run of this version."""
    try:
        words = json.loads((directory / f"{name}.json").read_text("utf-8"))
        return [Finding(**row) for row in words["findings"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
