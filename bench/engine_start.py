"""The time from engine.launch() to the program's first readable line, compared with a bare interpreter in the
same run.

`python -m bench.engine_start` prints medians in milliseconds over interleaved rounds, for one replica and for
eight in parallel. It then prints the CPU time of this process, in which the engine runs.
"""

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trainshed.core.launch import LaunchPlan, Limits
from trainshed.core.lifecycle.replica_events import ReplicaExited
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.spawner import ZygoteHandle, start
from trainshed.engines.port import ReplicaReport, SlotRequest

GANG = 8
PROGRAM = [sys.executable, "-c", "print(1)"]


def bare(count: int) -> float:
    """Start `count` interpreters at the same time. Return the milliseconds until each has written its
    line."""
    begin = time.perf_counter()
    children = [subprocess.Popen(PROGRAM, stdout=subprocess.PIPE) for _ in range(count)]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    elapsed = (time.perf_counter() - begin) * 1000
    for child in children:
        child.communicate()
    return elapsed


async def start_replicas(engine: LocalEngine, data: Path, uid: JobUid, count: int) -> float:
    """Start the same number of replicas with the engine. Return the milliseconds until each log has its line
    on disk."""
    replicas = [ReplicaId(0, 0), *(ReplicaId(1, index) for index in range(count - 1))]
    slots = await engine.allocate(
        uid, 1, [SlotRequest(replica, f"h-{replica}", "local") for replica in replicas]
    )
    hosts = tuple((slot.hostname, slot.address) for slot in slots)
    plans = [
        LaunchPlan(
            uid, 1, slot.replica, 1, tuple(PROGRAM), (), slot.hostname, slot.address, hosts,
            limits=Limits(memory=1 << 30, cpu_weight=100),
        )
        for slot in slots
    ]  # fmt: skip
    logs = [data / "logs" / str(uid) / "1" / str(replica) / "000000000000.jsonl" for replica in replicas]
    begin = time.perf_counter()
    await engine.launch(plans)
    waiting = set(logs)
    elapsed = 0.0
    over = 0
    async for event in engine.watch():
        if waiting:
            waiting = {log for log in waiting if not (log.exists() and log.stat().st_size)}
            elapsed = (time.perf_counter() - begin) * 1000
        over += isinstance(event, ReplicaReport) and isinstance(event.event, ReplicaExited)
        if over == count:
            break
    await engine.release(uid, 1)
    return elapsed


async def main(rounds: int, data: Path, zygote: ZygoteHandle) -> None:
    engine = LocalEngine(data, zygote=zygote)
    await engine.start()
    uids = iter(range(1, 10**6))
    for count in (1, GANG):
        ours: list[float] = []
        floor: list[float] = []
        for _ in range(rounds):
            floor.append(bare(count))
            ours.append(await start_replicas(engine, data, JobUid(next(uids)), count))
        a, b = statistics.median(floor), statistics.median(ours)
        print(f"{count} replica(s): bare {a:.1f} ms, launched {b:.1f} ms: +{b - a:.1f} ms, x{b / a:.2f}")
    await engine.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    zygote = start()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
        asyncio.run(main(arguments.rounds, Path(directory), zygote))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(f"the engine's process has taken {usage.ru_utime + usage.ru_stime:.2f} s of processor time")
