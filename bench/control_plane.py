"""The cost of store calls and scheduler passes with a long history.

A store with 1,000,000 finished jobs is compared with one that has 1,000. Both have 10,000 queued jobs. Both
stores are open at once and are called in turn, so that a slow moment of the machine affects both.
"""

import asyncio
import contextlib
import gc
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.history import LOCATIONS, PROJECTS, T0, fill, job_of, name_of
from bench.measures import Row, beside
from bench.passes import Passes
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api, JobUid
from trainshed.core.works import Work
from trainshed.serve.service import tune_memory
from trainshed.store.port import Commit, JobQuery, LiveJob, NewWork
from trainshed.store.sqlite.database import DATABASE_FILE, Store, open_database

FINISHED = (1_000, 1_000_000)
QUEUED = 10_000
LIMIT = 3.0
"""Maximum ratio of a call's p50 and p99 with the long history to its p50 and p99 with the short history
(issue 3, point 11)."""

_PAGE = 100


@dataclass(frozen=True, slots=True)
class Comparison:
    """Milliseconds of a call as (p50, p99), with the short history and with the long one."""

    short: tuple[float, float]
    long: tuple[float, float]


@dataclass(slots=True)
class _Side:
    """A store with its jobs. Jobs 1 to `finished` have finished. The next `QUEUED` jobs wait."""

    store: Store
    finished: int
    queued: int
    epoch: int
    next_uid: int
    draws: random.Random
    passes: Passes
    spans: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def a_finished(self) -> int:
        return self.draws.randint(1, self.finished)

    async def a_queued(self) -> LiveJob[Work]:
        live = await self.store.ledger.load(JobUid(self.finished + self.draws.randint(1, self.queued)))
        assert live is not None
        return live


def measure(
    directory: Path, finished: tuple[int, int] = FINISHED, queued: int = QUEUED, rounds: int = 3_000
) -> dict[str, Comparison]:
    """Fill two stores below `directory`, and compare all calls.

    `rounds`: the number of writes. `CALLS` contains the number of other calls per round. Both files are
    locked in memory, so that reads contain no disk time: some machines swap out unused memory within seconds.
    """
    for count in finished:
        fill(directory / str(count), count, queued)
    return asyncio.run(_measure(directory, finished, queued, rounds))


_KEEP = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | 0x2000, prot=mmap.PROT_READ)
print(len(pages), flush=True)
sys.stdin.read()
"""
"""The value of MAP_LOCKED, for which Python has no constant."""


@contextlib.contextmanager
def _kept_in_memory(file: Path) -> Generator[None]:
    """Lock the file in memory, in a separate process. If this process closed the file, it would drop the
    locks that SQLite holds on it."""
    command = [sys.executable, "-c", _KEEP, str(file)]
    pipe = subprocess.PIPE
    # The process exits when its input closes, at the end of this block.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as keeper:
        assert keeper.stdout is not None
        if not keeper.stdout.readline():
            print(f"{file} is read from the disk: no memory may be locked (ulimit -l)")
        yield


async def _measure(
    directory: Path, finished: tuple[int, int], queued: int, rounds: int
) -> dict[str, Comparison]:
    sides: list[_Side] = []
    thresholds = gc.get_threshold()
    for count in finished:
        store = open_database(directory / str(count))
        epoch = await store.ledger.acquire("bench")
        works = [live_job.job for live_job in await store.ledger.load_live()]
        live = [job for job in works if isinstance(job, Job)]
        passes = Passes(live, next_uid=2 * (count + queued))
        after = count + queued + 1
        sides.append(_Side(store, count, queued, epoch, after, random.Random(count), passes))
    try:
        # Warm the caches. The results of this round do not count.
        for what, (call, share) in CALLS.items():
            await _call_in_turn(sides, what, call, max(5, int(rounds * share / 10)))
        for side in sides:
            side.spans.clear()
        # The service also disables garbage collection. Otherwise each of some hundred pages would contain a
        # collection over both stores.
        tune_memory()
        with contextlib.ExitStack() as kept:
            for count in finished:
                kept.enter_context(_kept_in_memory(directory / str(count) / DATABASE_FILE))
            for what, (call, share) in CALLS.items():
                await _call_in_turn(sides, what, call, max(5, int(rounds * share)))
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        for side in sides:
            side.store.close()
    short, long = sides
    return {
        what: Comparison(_percentiles(short.spans[what]), _percentiles(long.spans[what])) for what in CALLS
    }


async def _call_in_turn(
    sides: list[_Side], what: str, call: Callable[[_Side], Awaitable[float]], rounds: int
) -> None:
    for number in range(rounds):
        for side in sides if number % 2 else reversed(sides):
            side.spans.setdefault(what, []).append(await call(side))


async def _create(side: _Side) -> float:
    job = job_of(side.next_uid, is_over=False)
    side.next_uid += 1
    return await _measure_call(side.store.intake.create(NewWork(job, tuple(_entries("created")))))


async def _get(side: _Side) -> float:
    return await _measure_call(side.store.reader.job(name_of(side.a_finished())))


async def _step(side: _Side) -> float:
    live = await side.a_queued()
    commit = Commit(live.job, live.generation, tuple(_entries("waiting")))
    return await _measure_call(side.store.ledger.commit(side.epoch, commit))


async def _load(side: _Side) -> float:
    uid = JobUid(side.finished + side.draws.randint(1, side.queued))
    return await _measure_call(side.store.ledger.load(uid))


async def _load_live(side: _Side) -> float:
    return await _measure_call(side.store.ledger.load_live())


async def _measure_end(side: _Side) -> float:
    return side.passes.measure_end()


async def _measure_arrival(side: _Side) -> float:
    return side.passes.measure_arrival()


def _page(*, project: bool, location: bool, in_the_middle: bool) -> Callable[[_Side], Awaitable[float]]:
    async def call(side: _Side) -> float:
        query = JobQuery(
            side.draws.choice(PROJECTS) if project else "",
            Api.VERTEX if location else None,
            side.draws.choice(LOCATIONS) if location else None,
            # A job that is finished in both stores, and old enough for a full page.
            after=side.draws.randint(side.finished // 2, side.finished) if in_the_middle else 0,
            limit=_PAGE,
        )
        return await _measure_call(side.store.reader.jobs(query))

    return call


CALLS: dict[str, tuple[Callable[[_Side], Awaitable[float]], float]] = {
    "create": (_create, 1.0),
    "commit of a step": (_step, 1.0),
    "get of a finished job": (_get, 5.0),
    "load of a queued job": (_load, 5.0),
    "first page, all projects": (_page(project=False, location=False, in_the_middle=False), 0.3),
    "first page of a project": (_page(project=True, location=False, in_the_middle=False), 0.3),
    "first page of a location": (_page(project=True, location=True, in_the_middle=False), 0.3),
    "later page of a project": (_page(project=True, location=False, in_the_middle=True), 0.3),
    "later page of a location": (_page(project=True, location=True, in_the_middle=True), 0.3),
    "load of all live jobs": (_load_live, 0.01),
    "scheduling pass, a job has ended": (_measure_end, 0.3),
    "scheduling pass, a job has arrived": (_measure_arrival, 0.3),
}
"""For each row: the call, and the number of calls per round."""


async def _measure_call(call: Awaitable[Any]) -> float:
    begun = time.perf_counter()
    await call
    return (time.perf_counter() - begun) * 1e3


def _percentiles(spans: list[float]) -> tuple[float, float]:
    """Return (p50, p99). With fewer than a hundred calls, the second value is p90."""
    percent = statistics.quantiles(spans, n=100, method="inclusive")
    return statistics.median(spans), percent[98] if len(spans) >= 100 else percent[89]


def _entries(kind: str) -> list[TimelineEntry]:
    return [TimelineEntry(T0, kind, f"What there is to say when a job is {kind}.")]


def rows(compared: dict[str, Comparison]) -> list[Row]:
    """Return two rows of the report per call. The floor column contains the time with the short history."""
    made: list[Row] = []
    for what, comparison in compared.items():
        for word, short, long in zip(("p50", "p99"), comparison.short, comparison.long, strict=True):
            made.append(beside(f"{what}, {word}", long, short, LIMIT, digits=3))
    return made
