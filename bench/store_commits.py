"""The rate of durable jobs: the store compared with a bare write-and-fdatasync loop on the same disk.

Rounds of the store and of the loop alternate, so that ratios are stable on a busy machine. Run `python
bench/store_commits.py [DIRECTORY]`. It takes about ten seconds.
"""

import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

from trainshed.core.job import JobSpec, Machine, Program, Scheduling, WorkerPool
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, JobName, JobUid, ReplicaId
from trainshed.core.runtime import RuntimeChoice
from trainshed.store.port import Commit, JobQuery, NewWork
from trainshed.store.sqlite.database import Store, open_database

_SECONDS = 0.4
_ROUNDS = 3
_CALLERS = (1, 8, 64)
_numbers = itertools.count(1)


def _job() -> Job:
    """Return a job with eight replicas, whose record has about 4 kB."""
    uid = next(_numbers)
    program = Program(RuntimeChoice("python", "", "3.11"), module="trainer.task", args=("--steps", "9"))
    machine = Machine("n1-standard-4", 4.0, 16 << 30, 12 << 30)
    pools = (WorkerPool(0, 1, machine, program), WorkerPool(1, 7, machine, program))
    spec = JobSpec(Api.VERTEX, "us-central1", pools, Scheduling(), "x" * 1000)
    return Job(
        uid=JobUid(uid),
        name=JobName(Api.VERTEX, "p", "us-central1", str(uid)),
        display_name="bench",
        spec=spec,
        public_json="y" * 1000,
        created=time.time_ns(),
        updated=time.time_ns(),
        replicas=tuple(Replica(ReplicaId(1, index), node="node") for index in range(8)),
    )


def _floor(directory: Path) -> list[float]:
    """Return the seconds of each durable append of 4 kB. The appends run one after another."""
    spans: list[float] = []
    until = time.perf_counter() + _SECONDS
    descriptor = os.open(directory / "floor", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    while (begin := time.perf_counter()) < until:
        os.write(descriptor, b"z" * 4096)
        os.fdatasync(descriptor)
        spans.append(time.perf_counter() - begin)
    os.close(descriptor)
    return spans


async def _creates(store: Store, callers: int) -> list[float]:
    until = time.perf_counter() + _SECONDS
    spans: list[float] = []
    created = TimelineEntry(time.time_ns(), "created", "The job was created.")

    async def call() -> None:
        while (begin := time.perf_counter()) < until:
            await store.intake.create(NewWork(_job(), (created,)))
            spans.append(time.perf_counter() - begin)

    await asyncio.gather(*(call() for _ in range(callers)))
    return spans


async def _commits(store: Store, callers: int) -> list[float]:
    until = time.perf_counter() + _SECONDS
    spans: list[float] = []
    epoch = await store.ledger.acquire("bench")
    entries = (TimelineEntry(time.time_ns(), "running", "All replicas are running."),)

    async def call() -> None:
        job = replace(_job(), state=JobState.RUNNING)
        await store.intake.create(NewWork(job))
        generation = 1
        while (begin := time.perf_counter()) < until:
            generation = await store.ledger.commit(epoch, Commit(job, generation, entries))
            spans.append(time.perf_counter() - begin)

    await asyncio.gather(*(call() for _ in range(callers)))
    return spans


async def _reads(store: Store) -> None:
    (job, _), *_ = await store.reader.jobs(JobQuery("p", None, None, limit=1))
    for what, count, read in (
        ("read of a job by name", 2000, lambda: store.reader.job(job.name)),
        ("load by the controller", 2000, lambda: store.ledger.load(job.uid)),
        ("page of 100 jobs", 50, lambda: store.reader.jobs(JobQuery("p", None, None))),
    ):
        begin = time.process_time()
        for _ in range(count):
            await read()
        print(f"{what:28} {(time.process_time() - begin) / count * 1e6:9.0f} µs CPU")


def _row(what: str, spans: list[float], cpu: float, floor: float) -> str:
    rate = len(spans) / (_SECONDS * _ROUNDS)
    middle = statistics.median(spans) * 1e3
    late = statistics.quantiles(spans, n=100)[98] * 1e3
    return (
        f"{what:28} {rate:9.0f} /s  p50 {middle:6.2f} ms  p99 {late:7.2f} ms  "
        f"{cpu / len(spans) * 1e6:6.0f} µs CPU  {rate / floor:6.2f} x floor"
    )


async def _main(directory: Path) -> None:
    store = open_database(directory / "store")
    calls = {
        f"{word}, {callers} callers": (work, callers)
        for word, work in (("create", _creates), ("commit", _commits))
        for callers in _CALLERS
    }
    floor: list[float] = []
    spans: dict[str, list[float]] = {what: [] for what in calls}
    cpu = dict.fromkeys(calls, 0.0)
    for _ in range(_ROUNDS):
        floor += _floor(directory)
        for what, (work, callers) in calls.items():
            begin = time.process_time()
            spans[what] += await work(store, callers)
            cpu[what] += time.process_time() - begin
    rate = len(floor) / (_SECONDS * _ROUNDS)
    print(_row("floor: write + fdatasync", floor, 0.0, rate))
    for what in calls:
        print(_row(what, spans[what], cpu[what], rate))
    await _reads(store)
    store.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        asyncio.run(_main(Path(folder)))
