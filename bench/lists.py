"""Lists over REST with a long history, and the shutdown of the service.

A service with 1,000,000 stored finished jobs is compared with one that has 1,000. The stored jobs are copies
of a job that a service has run. Both services run at once and are called in turn.
"""

import asyncio
import statistics
import time
from pathlib import Path
from urllib.parse import quote

from msgspec.structs import replace
from tests.e2e.running import Service, container_job, down, start

from bench.history import fill
from bench.measures import Connection, Row, beside, within
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.store.sqlite.database import open_database

FINISHED = (1_000, 1_000_000)
LIMIT = 1.8
"""Maximum ratio of the times of an empty list, with the long history and with the short one."""
DOWN = 2000.0
"""Maximum milliseconds of the shutdown of a service without live jobs."""
_JOBS = "/v1/projects/research/locations/us-central1/customJobs"


def _filter_query(text: str) -> str:
    return f"{_JOBS}?filter={quote(text)}"


CALLS = {
    "list by a state that no job has": _filter_query('state="JOB_STATE_PAUSED"'),
    "list by a name that no job has": _filter_query('displayName="nobody"'),
    "list by a label that no job has": _filter_query('labels.team="nobody"'),
    "list by a label of all jobs": _filter_query('labels.team="vision"'),
    "list by the state of all jobs": _filter_query('state="JOB_STATE_SUCCEEDED"'),
    "all live jobs, by the main API": "/trainshed/v1/jobs?project=-&state=RUNNING",
    "first page of 100": f"{_JOBS}?pageSize=100",
}


def measure(directory: Path, finished: int = FINISHED[1], rounds: int = 100) -> list[Row]:
    """Return a row for each call. The value is p50 with the long history, the floor is p50 with the short
    history."""
    over = _really_run(directory / "example")
    counts = FINISHED[0], finished
    services: list[Service] = []
    try:
        for count in counts:
            data = directory / str(count)
            fill(data, count, 0, over)
            services.append(start(data))
        rows = _lists(services, rounds)
        rows.append(_ends(services))
    finally:
        for service in services:
            if service.process.poll() is None:
                service.kill()
    return rows


def _really_run(data: Path) -> Job:
    """Run a job with a label until it has succeeded, and return it as the service has stored it."""
    service = start(data)
    try:
        connection = Connection(service)
        body = {**container_job("print('hello')", name="daily"), "labels": {"team": "vision"}}
        uid = connection.submit(body)
        service.finish(uid)
    finally:
        down(data)
    store = open_database(data)
    try:
        work, _ = asyncio.run(store.reader.job_by_uid(JobUid(int(uid))))
    finally:
        store.close()
    assert isinstance(work, Job) and work.state.is_final
    return replace(work, labels=(("team", "vision"),))


def _lists(services: list[Service], rounds: int) -> list[Row]:
    connections = [Connection(service) for service in services]
    rows: list[Row] = []
    for name, path in CALLS.items():
        times: list[list[float]] = [[] for _ in services]
        for _ in range(rounds):
            for spans, connection in zip(times, connections, strict=True):
                begun = time.perf_counter()
                connection.call("GET", path)
                spans.append((time.perf_counter() - begun) * 1e3)
        # The first calls load modules, so they do not count.
        short, long = (statistics.median(spans[5:]) for spans in times)
        rows.append(beside(f"{name}, p50", long, short, LIMIT, digits=2))
    return rows


def _ends(services: list[Service]) -> Row:
    spans: list[float] = []
    for service in services:
        begun = time.perf_counter()
        down(service.data)
        spans.append((time.perf_counter() - begun) * 1e3)
        if service.process.poll() is None:
            service.process.wait(timeout=60)
    short, long = spans
    return within("`trainshed down`", long, short, DOWN)
