"""Databases with a long history, as the service would store it. Creating one takes a minute, because all rows
of a kind are copies of one job."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from trainshed.core.job import ExitRecord, JobSpec, Machine, Program, Scheduling, WorkerPool
from trainshed.core.lifecycle.records import Job, Outcome, Replica
from trainshed.core.lifecycle.states import AttemptState, JobState, ReplicaState
from trainshed.core.names import Api, JobName, JobUid, ReplicaId
from trainshed.core.runtime import RuntimeChoice
from trainshed.store.codec import DETAILS, work_parameters
from trainshed.store.sqlite.connections import load_statements, migrate
from trainshed.store.sqlite.database import DATABASE_FILE

PROJECTS = ("research", "production")
LOCATIONS = ("us-central1", "europe-west4")
T0 = 1_763_612_345_000_000_000
_TELL = """
    WITH steps (seq, kind) AS (
        VALUES (1, 'created'), (2, 'admitted'), (3, 'launching'), (4, 'running'), (5, 'exited'),
               (6, 'succeeded')
    )
    INSERT INTO timeline (job_uid, seq, at, kind, message, details)
    SELECT uid, seq, created, kind, 'The job is ' || kind || ', says a line.', ?
    FROM jobs CROSS JOIN steps
    WHERE is_live = 0 OR seq = 1
"""
_WORKS = load_statements("works.sql")


def fill(directory: Path, finished: int, queued: int, over: Job | None = None) -> None:
    """Insert jobs into a database, as the service would store them. `over`: a finished job to copy; None =
    create one."""
    over = over or _OVER
    directory.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(directory / DATABASE_FILE, isolation_level=None)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    migrate(connection)
    connection.execute("BEGIN")
    for first in range(1, finished + queued + 1, 10_000):
        last = min(first + 9_999, finished + queued)
        rows = [
            work_parameters(_with_number(over if uid <= finished else _WAITS, uid))
            for uid in range(first, last + 1)
        ]
        for statement in ("reserve_name", "insert_job", "insert_work"):
            connection.executemany(_WORKS[statement], rows)
        connection.executemany(_WORKS["insert_label"], _labels(range(first, last + 1), over))
    connection.execute(_TELL, (DETAILS.encode({}),))
    connection.execute("COMMIT")
    connection.close()


def name_of(uid: int) -> JobName:
    """Return the name of the job with this number. Names are distributed over projects and locations."""
    project = PROJECTS[uid % len(PROJECTS)]
    location = LOCATIONS[uid // len(PROJECTS) % len(LOCATIONS)]
    return JobName(Api.VERTEX, project, location, str(uid))


def job_of(uid: int, *, is_over: bool) -> Job:
    """Return the waiting or finished job with this number."""
    return _with_number(_OVER if is_over else _WAITS, uid)


def _with_number(example: Job, uid: int) -> Job:
    at = T0 + uid * 10**9
    return replace(example, uid=JobUid(uid), name=name_of(uid), created=at, updated=at)


def _labels(uids: range, example: Job) -> Iterator[dict[str, Any]]:
    for uid in uids:
        for key, value in example.labels:
            yield {"uid": uid, "key": key, "value": value}


def _examples() -> tuple[Job, Job]:
    """Return two versions of a job with a chief and a worker: one waits, one has finished."""
    program = Program(
        RuntimeChoice("python", "", "3.11"),
        package_uris=("gs://bucket/trainer-0.1.tar.gz",),
        module="trainer.task",
        args=("--steps", "1000", "--rate", "0.01"),
    )
    machine = Machine("n1-standard-4", 4.0, 16 << 30, 12 << 30)
    pools = (WorkerPool(0, 1, machine, program), WorkerPool(1, 1, machine, program))
    waits = Job(
        uid=JobUid(0),
        name=name_of(0),
        display_name="training of the week",
        spec=JobSpec(Api.VERTEX, LOCATIONS[0], pools, Scheduling(), "x" * 500),
        public_json="y" * 500,
        created=T0,
        updated=T0,
        labels=(("team", "vision"),),
    )
    end = ExitRecord(exit_code=0, signal=None, oom=False, started=T0, ended=T0, log_lines=1000)
    over = replace(
        waits,
        state=JobState.SUCCEEDED,
        phase=AttemptState.OVER,
        attempt=1,
        started=T0,
        ended=T0,
        outcome=Outcome(JobState.SUCCEEDED, "primary_succeeded", at=T0),
        replicas=tuple(
            Replica(replica, ReplicaState.EXITED, node="node", started=T0, exit=end)
            for replica in (ReplicaId(0, 0), ReplicaId(1, 0))
        ),
    )
    return waits, over


_WAITS, _OVER = _examples()
