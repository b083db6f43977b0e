"""Reducers that are killed again and again while a group sums: `python -m tests.reduction.kills`.

Every rank is a process that checks each result bit by bit and destroys it right afterwards; reducers get
SIGKILL at random moments and are started again where they were. Exit status 0: all results were right.
"""

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from typing import NamedTuple

from tests.reduction import ranks
from tests.reduction.reducers import Address, Reducers, environment
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.wire import DType, Reduction


class Plan(NamedTuple):
    world: int = 3
    reducers: int = 3
    operations: int = 1000
    kills: int = 100
    elements: int = 200_000
    #: Operations under way at a time.
    together: int = 3
    seed: int = 0


class Outcome(NamedTuple):
    """`wrong`: results; `killed`: reducers; `slowest`: of the batches,
    seconds."""

    wrong: int
    killed: int
    seconds: float
    slowest: float


def rank(plan: Plan, number: int, addresses: list[Address]) -> None:
    """The program of one. Tells its steps on standard output."""
    communicator = Communicator(
        ranks.settings([(host, port) for host, port in addresses]),
        group="kills",
        rank=number,
        world=plan.world,
        generation=1,
    )
    communicator.start()
    wrong, slowest = 0, 0.0
    for first in range(0, plan.operations, plan.together):
        seeds = range(first, min(first + plan.together, plan.operations))
        arrays = [ranks.inputs(seed % 5, number, plan.elements, DType.FLOAT32) for seed in seeds]
        wanted = [_wanted(plan, seed % 5) for seed in seeds]
        began = time.monotonic()
        issued = [ranks.issue(communicator, array, DType.FLOAT32) for array in arrays]
        for operation, array, want in zip(issued, arrays, wanted, strict=True):
            operation.wait()
            wrong += array.tobytes() != want
            array.fill(float("nan"))
        slowest = max(slowest, time.monotonic() - began)
        print(json.dumps({"done": seeds[-1] + 1}), flush=True)
    communicator.close()
    print(json.dumps({"wrong": wrong, "slowest": slowest}), flush=True)


_known: dict[int, bytes] = {}


def _wanted(plan: Plan, seed: int) -> bytes:
    if seed not in _known:
        sums = ranks.expected(seed, plan.world, plan.elements, DType.FLOAT32, Reduction.SUM)
        _known[seed] = sums.tobytes()
    return _known[seed]


def run(plan: Plan) -> Outcome:
    """Raises RuntimeError: a rank failed."""
    chance = random.Random(plan.seed)
    with Reducers(plan.reducers) as reducers:
        began = time.monotonic()
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    __spec__.name if __spec__ else __name__,
                    "--rank",
                    str(number),
                    "--plan",
                    json.dumps([*plan, list(reducers.addresses)]),
                ],
                env=environment(),
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(plan.world)
        ]
        killed = 0
        ended = threading.Event()

        def kill() -> None:
            nonlocal killed
            assert processes[0].stdout is not None
            for line in processes[0].stdout:
                event = json.loads(line)
                if "done" not in event:
                    last.append(event)
                    continue
                while killed * plan.operations < event["done"] * plan.kills and killed < plan.kills:
                    victim = chance.choice(reducers.all)
                    ended.wait(chance.uniform(0, 0.02))
                    victim.kill()
                    victim.start()
                    killed += 1

        last: list[dict[str, float]] = []
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            for process in processes[1:]:
                out, _ = process.communicate(timeout=600)
                last.append(json.loads(out.splitlines()[-1]))
            killer.join()
            if any(process.wait() for process in processes):
                raise RuntimeError("a rank failed")
        finally:
            ended.set()
            for process in processes:
                process.kill()
                process.wait()
            killer.join()
    return Outcome(
        wrong=int(sum(rank_counts["wrong"] for rank_counts in last)),
        killed=killed,
        seconds=time.monotonic() - began,
        slowest=max(rank_counts["slowest"] for rank_counts in last),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in Plan()._asdict().items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    options = vars(parser.parse_args())
    number, plan_end = options.pop("rank"), options.pop("plan")
    if number is not None:
        *plan, addresses = json.loads(plan_end)
        rank(Plan(*plan), number, addresses)
        return 0
    outcome = run(Plan(**options))
    print(outcome)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
