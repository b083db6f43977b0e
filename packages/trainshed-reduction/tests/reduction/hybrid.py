"""Workers that reduce beside their reducers (spec/reduction#hybrid), each a process: one's own reducer ends
with it.

A worker says how its group came together, then whatever comes of the all-reduces that it is told to do.
"""

import contextlib
import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.reduction.ranks import Array, FileBoard, expected, inputs, issue, settings
from tests.reduction.reducers import Address, environment
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.wire import DType, Reduction

WORLD = 3
_SIZE = 100_000


def right(seed: int) -> str:
    """What each worker says of this all-reduce when the result is exact."""
    return _digest(expected(seed, WORLD, _SIZE, DType.FLOAT32, Reduction.SUM))


class Worker:
    def __init__(self, given: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, given],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next one that it says; "" after the last."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def sum(self, seed: int) -> None:
        """Have it begin an all-reduce."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def workers(
    addresses: Sequence[Address], board: Path, *told: Mapping[str, Any]
) -> Generator[list[Worker]]:
    """`told`: settings of each rank besides the mode, or those that all have."""
    every = told if len(told) == WORLD else told * WORLD
    started: list[Worker] = []
    try:
        for rank, more in enumerate(every):
            given = json.dumps([addresses, rank, str(board), {"mode": "hybrid", **more}])
            started.append(Worker(given))
        yield started
    finally:
        for worker in started:
            worker.kill()


def _digest(array: Array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def _work(given: str) -> None:
    addresses, rank, board, more = json.loads(given)
    communicator = Communicator(
        settings([tuple(each) for each in addresses], **more),
        group="hybrid",
        rank=rank,
        world=WORLD,
        board=FileBoard(Path(board)),
    )
    try:
        communicator.start()
        print(communicator.describe(), flush=True)
        for line in sys.stdin:
            array = inputs(int(line), rank, _SIZE, DType.FLOAT32)
            operation = issue(communicator, array, DType.FLOAT32)
            assert operation is not None
            operation.wait()
            print(_digest(array), flush=True)
    except ReductionFailed as failure:
        print(failure, flush=True)
        communicator.close()


if __name__ == "__main__":
    _work(sys.argv[1])
