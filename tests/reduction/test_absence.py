"""A worker that is killed while workers reduce beside their reducers (SPEC §7, hybrid)."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.reduction import ranks
from tests.reduction.reducers import Reducers, environment

WORLD = 3
WORKER = """
import sys
from pathlib import Path
from tests.reduction.ranks import DType, FileBoard, inputs, issue, settings
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.port import ReductionFailed
port, rank, board = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
told = settings([("127.0.0.1", port)], mode="hybrid", absent_limit=3.0)
communicator = Communicator(told, group="hybrid", rank=rank, world=3, board=FileBoard(board))
communicator.start()
array = inputs(0, rank, 100_000, DType.FLOAT32)
issue(communicator, array, DType.FLOAT32).wait()
print("ready", flush=True)
sys.stdin.readline()
try:
    issue(communicator, array, DType.FLOAT32).wait()
except ReductionFailed as failure:
    print(failure)
"""


def test_a_worker_that_is_gone_with_its_own_reducer_is_not_waited_for(tmp_path: Path) -> None:
    """SPEC §7: its reducer does not answer either, which is no reason to wait until that one is given up."""
    with Reducers(1) as reducers:
        workers = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    WORKER,
                    str(reducers.addresses[0][1]),
                    str(rank),
                    str(tmp_path),
                ],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(WORLD)
        ]
        try:
            for worker in workers:
                assert worker.stdout is not None
                assert worker.stdout.readline() == "ready\n"
            workers[1].send_signal(signal.SIGKILL)
            left = (workers[0], workers[2])
            for worker in left:
                assert worker.stdin is not None
                worker.stdin.write("go on\n")
                worker.stdin.flush()
            for worker in left:
                said, _ = worker.communicate(timeout=ranks.PATIENCE / 3)
                assert "a rank is gone" in said
                # The one that is told first may be missed as well by then.
                assert re.search(r"for rank(s 0,)? 1\b|for ranks 1, 2", said), said
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
