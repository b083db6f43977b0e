"""Jobs with reducers on a real service: a program that sums through the client itself, in an environment
without PyTorch.
"""

import contextlib
import json
import os
import signal
from pathlib import Path

from tests.commands import needs_compiler
from tests.e2e.job_history import PRIMARY, REDUCER, Verdict, history_of, until
from tests.e2e.processes import children, commands
from tests.e2e.running import SKLEARN, Service, submit, worker_pool
from trainshed.core.environment import REDUCER_PROGRAM
from trainshed_reduction import variables as reduction

pytestmark = needs_compiler
IMAGE = "europe-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
UNDER_WAY = "under way"
_SUMS = f"""
import os, signal, sys
import numpy as np
from trainshed_reduction import process
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.settings import from_environ
from trainshed_reduction.wire import DType, Reduction

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # It says what it has to although the primary has ended.
end = sys.argv[1]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
group = Communicator(
    from_environ(), group="sums", rank=rank, world=world, generation=1, reports=process.reports()
)
group.start()

def allreduce(array, dtype):
    group.issue(memoryview(array), dtype, Reduction.SUM).wait()
    return array

def data(step, of):
    return np.random.default_rng([step, of]).standard_normal(300_000, dtype=np.float32)

step = 0
enough = np.zeros(1, np.int32)
while not enough[0]:
    array = allreduce(data(step, rank), DType.FLOAT32)
    expected = data(step, 0)
    for other in range(1, world):
        expected += data(step, other)
    assert array.tobytes() == expected.tobytes(), "wrong in step %d" % step
    enough[0] = rank == 0 and os.path.exists(end)
    allreduce(enough, DType.INT32)
    step += 1
    if step == 3:
        print({UNDER_WAY!r}, flush=True)
group.close()
print("right", flush=True)
"""


def pool(count: int, image: str, **container: object) -> dict[str, object]:
    return worker_pool(count, "n1-highcpu-16", containerSpec={"imageUri": image, **container})


def reduction_job(end: Path) -> dict[str, object]:
    """Three workers and two reducers. The workers run until `end` exists."""
    command = ["python3", "-c", _SUMS, str(end)]
    pools = [pool(1, SKLEARN, command=command), pool(2, SKLEARN, command=command), pool(2, IMAGE)]
    return {"displayName": "reduced", "jobSpec": {"workerPoolSpecs": pools}}


def reducing(job_id: str, replica: str) -> int:
    """Return the main process of a reducer: the one without a parent among its processes."""
    job = f"CLOUD_ML_JOB_ID={job_id}"
    host, rank = f"HOSTNAME=cmle-training-{replica[:-2]}-", f"-{replica[-1]}"
    pids: list[int] = []
    for pid in commands(REDUCER_PROGRAM[2]):
        with contextlib.suppress(OSError):  # Of an earlier test, which has ended.
            environ = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
            if job in environ and any(x.startswith(host) and x.endswith(rank) for x in environ):
                pids.append(pid)
    started = {child for pid in pids for child in children(pid)}
    (main,) = (pid for pid in pids if pid not in started)
    return main


def test_sums_are_exact_while_a_reducer_is_killed_and_restarted(service: Service, commons: Path) -> None:
    """spec/reduction#losses, spec/reduction#security: every sum exact to the bit, the reducer restarted, no
    retry. Reducers appear in views, timeline and logs, and the token appears nowhere. The end of the primary
    stops the remaining reducers.
    """
    end = commons / "end"
    job_id = submit(service, reduction_job(end))
    until(service.follow(job_id, PRIMARY), UNDER_WAY)
    killed = reducing(job_id, REDUCER)
    token = _read_variable(killed, reduction.TOKEN)
    os.kill(killed, signal.SIGKILL)
    for view in service.watch(job_id, 60):
        (again,) = (replica for replica in view["replicas"] if replica["id"] == REDUCER)
        if (again["incarnation"], again["state"]) == (2, "RUNNING"):
            break
    end.touch()
    history = history_of(service, job_id)
    assert history.state == "SUCCEEDED", service.lines(job_id)
    for worker in (PRIMARY, "workerpool1-0", "workerpool1-1"):
        assert service.lines(job_id, worker)[-1] == "right"
    assert [verdict for verdict in history.verdicts if verdict.rule != "replica_completed"] == [
        Verdict("reducer_lost", "replica_restarts", REDUCER, "1/20")
    ]
    assert (history.view["attempt"], history.view["retries"]) == (1, {})
    starts = [e["details"]["replica"] for e in history.of_kind("replica_started")]
    assert starts.count(REDUCER) == 2
    listening = [line for line in service.lines(job_id, REDUCER) if "listening on" in line]
    assert len(listening) == 2
    assert listening[0].split(":")[0] == listening[1].split(":")[0], "it is back where it was"
    shown = json.dumps([history.view, history.public, history.entries, service.lines(job_id)])
    assert token not in shown


def _read_variable(pid: int, name: str) -> str:
    environ = Path(f"/proc/{pid}/environ").read_text().split("\0")
    (entry,) = (text for text in environ if text.startswith(f"{name}="))
    return entry.partition("=")[2]
