"""Properties of SQLite beyond the store contract: cost, locking, schema versions, and the state
after a kill."""

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trainshed_tracking
from tests.contract.store.store_samples import job_of, live_job, make_job, operation, step
from tests.contract.store.study_samples import child, make_pipeline, make_tuning
from trainshed.core.errors import NotFound, Unavailable
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, Collection, JobUid
from trainshed.core.works import Work
from trainshed.store.port import JobQuery, NewWork, StoreInUse, StoreOfOtherVersion
from trainshed.store.sqlite.connections import load_statements, migrate, open_writer, scripts
from trainshed.store.sqlite.database import DATABASE_FILE, Store, open_database
from trainshed.store.sqlite.jobs import Intake
from trainshed.store.sqlite.narrowing import walk
from trainshed.store.sqlite.presence import OpenFiles
from trainshed.store.sqlite.reader import Reader
from trainshed.store.sqlite.snapshots import Snapshots
from trainshed.store.sqlite.writer import Writer

STATEMENT_FILES = (
    *("curves", "datasets", "evaluations", "jobs", "models", "operations"),
    *("reader", "studies", "trials", "works"),
)
TRACKING = Path(trainshed_tracking.__file__).parent


def statements() -> list[tuple[str, str]]:
    files = {group: load_statements(f"{group}.sql") for group in STATEMENT_FILES}
    files["metadata_stores"] = load_statements("metadata_stores.sql", TRACKING / "metadata")
    files["tensorboards"] = load_statements("tensorboards.sql", TRACKING / "tensorboards")
    return [(f"{group}.{name}", sql) for group, file in files.items() for name, sql in file.items()]


COUNTS = ["SCAN json_each VIRTUAL TABLE INDEX 1:", "SCAN (subquery-1)"]


def test_no_sql_statement_reads_all_jobs(tmp_path: Path) -> None:
    """spec/invariants#finished-jobs: the cost of a call does not depend on the number of stored
    finished jobs."""
    # These statements scan only small sets: live jobs and running operations by their own indexes,
    # pending intents, settings.
    allowed = {
        "curves.unfinished": ["SCAN curve_jobs"],
        "jobs.load_live": ["SCAN jobs USING INDEX jobs_live"],
        "jobs.load_all_intents": ["SCAN intents"],
        "jobs.append_cancel": ["SCAN CONSTANT ROW"],
        "reader.jobs_by_uids": ["SCAN wanted VIRTUAL TABLE INDEX 1:"],
        "reader.states": ["SCAN wanted VIRTUAL TABLE INDEX 1:"],
        # Scans the job states.
        **{f"reader.{name}": COUNTS for name in ("counts", "counts_of_project")},
        "reader.drained_nodes": ["SCAN drained_nodes"],
        # Scans the caller's projects.
        "reader.job_by_uid": ["SCAN json_each VIRTUAL TABLE INDEX 1:"],
        # Scans the jobs with this ID, one per project that uses it, and the caller's projects.
        "reader.find": [
            "SCAN found",
            "SCAN json_each VIRTUAL TABLE INDEX 1:",
            "USE TEMP B-TREE FOR ORDER BY",
        ],
        # Scans the projects, with one index lookup for each.
        "reader.projects": ["SCAN named", "SCAN named"],
        "reader.quotas": ["SCAN q"],
        # Sorts at most two limits.
        "jobs.quota_of_service": ["USE TEMP B-TREE FOR ORDER BY"],
        # Scans the usage between two times, not earlier usage.
        "reader.machine_time": ["USE TEMP B-TREE FOR GROUP BY"],
        "reader.past_use": ["USE TEMP B-TREE FOR GROUP BY"],
        "operations.running_operations": ["SCAN operations USING INDEX operations_running"],
    }
    connection = open_writer(tmp_path / "x.db")
    migrate(connection)
    for name, sql in statements():
        parameters = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]
        looks = [step for step in plan if "SCAN" in step or "TEMP B-TREE" in step]
        assert looks == allowed.get(name, []), name
    connection.close()


LISTS = [
    *(JobQuery("p", api, None) for api in (None, *Api)),
    JobQuery("p", None, "l", collection=Collection.TUNING_JOBS),
    JobQuery(None, None, None),
]


@pytest.mark.parametrize("query", LISTS, ids=str)
async def test_no_list_query_reads_or_sorts_all_jobs(tmp_path: Path, query: JobQuery) -> None:
    """spec/invariants#finished-jobs."""
    store = open_database(tmp_path)
    works: list[Work] = [make_job(1), make_job(2, api=Api.ML), make_job(3, location="europe-west4")]
    works += [make_tuning(4), make_pipeline(5), child(make_tuning(4), 6)]
    await store.intake.create(*(NewWork(work) for work in works))
    store.close()
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as connection:
        through = walk(query)
        plan_query = f"EXPLAIN QUERY PLAN {through.sql} LIMIT :limit"
        plan = [row[3] for row in connection.execute(plan_query, through.parameters)]
    assert not [line for line in plan if "SCAN" in line or "TEMP B-TREE" in line]


def test_data_directory_is_locked_by_one_service(tmp_path: Path) -> None:
    first = open_database(tmp_path)
    with pytest.raises(StoreInUse, match=rf"process id {os.getpid()}\b.*another data directory"):
        open_database(tmp_path)
    first.close()
    open_database(tmp_path).close()


def test_newer_database_is_rejected_and_not_changed(tmp_path: Path) -> None:
    open_database(tmp_path).close()
    newest = len(scripts())
    connection = sqlite3.connect(tmp_path / DATABASE_FILE)
    assert connection.execute("PRAGMA user_version").fetchone() == (newest,)
    connection.execute(f"PRAGMA user_version = {newest + 1}")
    connection.close()
    with pytest.raises(StoreOfOtherVersion, match=f"version {newest + 1}"):
        open_database(tmp_path)
    # The lock was released.
    with pytest.raises(StoreOfOtherVersion):
        open_database(tmp_path)


def test_failed_migration_keeps_the_previous_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ((1, "CREATE TABLE a (x);"), (2, "CREATE TABLE b (x); CREATE TABLE a (x);"))
    monkeypatch.setattr("trainshed.store.sqlite.connections.scripts", lambda: broken)
    connection = open_writer(tmp_path / "x.db")
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("a",)]
    connection.close()


def test_database_connection_syncs_each_commit(tmp_path: Path) -> None:
    connection = open_writer(tmp_path / "x.db")
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_full_disk_fails_writes_until_space_is_free(tmp_path: Path) -> None:
    connection = open_writer(tmp_path / DATABASE_FILE)
    migrate(connection)
    files = OpenFiles(tmp_path / DATABASE_FILE)
    writer, snapshots = Writer(connection, files), Snapshots(tmp_path / DATABASE_FILE)
    intake, reader = Intake(writer, snapshots), Reader(writer, snapshots)
    await intake.create(NewWork(make_job(1)))
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 3}")
    many = (intake.create(NewWork(make_job(uid))) for uid in range(2, 40))
    results = await asyncio.gather(*many, return_exceptions=True)
    refused = [uid for uid, result in enumerate(results, 2) if isinstance(result, Unavailable)]
    stored = [uid for uid, result in enumerate(results, 2) if result is None]
    assert refused and len(refused) + len(stored) == 38
    connection.execute("PRAGMA max_page_count = 100000")
    for uid in refused:
        with pytest.raises(NotFound):
            await reader.job_by_uid(JobUid(uid))
        await intake.create(NewWork(make_job(uid)))
    for uid in stored:
        assert (await reader.job_by_uid(JobUid(uid)))[0].uid == uid
    snapshots.close()
    writer.close()


_CHILD = """
import asyncio, os, sys
from pathlib import Path
from tests.contract.store.store_samples import entry, live_job, make_job, operation, step
from trainshed.core.lifecycle.states import JobState
from trainshed.store.port import NewWork
from trainshed.store.sqlite.database import open_database

async def worker(store, epoch, first):
    uid = first
    while True:
        job = make_job(uid)
        await store.intake.create(NewWork(job, (entry("created"), entry("more"))))
        os.write(1, b"created %d\\n" % uid)
        for state in (JobState.RUNNING, JobState.SUCCEEDED):
            live = live_job(await store.ledger.load(uid))
            await store.ledger.commit(epoch, step(live, state, state.lower(), "more"))
            os.write(1, b"%s %d\\n" % (state.lower().encode(), uid))
        if uid % 3 == 0:
            await store.intake.delete_job(job.name, operation(uid, str(job.name)))
            os.write(1, b"deleted %d\\n" % uid)
        uid += 8

async def main():
    store = open_database(Path(sys.argv[1]))
    epoch = await store.ledger.acquire("child")
    await asyncio.gather(*(worker(store, epoch, int(sys.argv[2]) + n) for n in range(8)))

asyncio.run(main())
"""

_RANK = {"created": 1, "running": 2, "succeeded": 3, "deleted": 4}


def acknowledged_until_killed(directory: Path, first: int, lines: int) -> dict[int, int]:
    """Return the rank of the last acknowledged step for each uid. A child process writes them and
    is killed after `lines` or a few more."""
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(directory), str(first)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
    )
    with child:
        assert child.stdout
        printed = [child.stdout.readline() for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        printed += child.stdout.readlines()
    assert child.returncode == -signal.SIGKILL
    words = (line.decode().split() for line in printed if line.endswith(b"\n"))
    return {int(uid): _RANK[word] for word, uid in words}


async def stored_rank(store: Store, uid: int) -> int:
    """Return the rank of a job's stored step, after checking that all its parts agree. 0: not stored."""
    entries = len(await store.reader.timeline(JobUid(uid)))
    live = await store.ledger.load(JobUid(uid))
    try:
        deleted = await store.reader.operation(operation(uid).name)
    except NotFound:
        deleted = None
    try:
        job, _ = await store.reader.job_by_uid(JobUid(uid))
    except NotFound:
        assert (entries, live) == (0, None)
        return 4 if deleted else 0
    rank = {JobState.QUEUED: 1, JobState.RUNNING: 2, JobState.SUCCEEDED: 3}[job_of(job).state]
    assert (entries, deleted, live is None) == (2 * rank, None, rank == 3)
    assert (await store.reader.job(job.name))[0] == job
    return rank


async def test_kill_keeps_acknowledged_writes_and_leaves_no_partial_writes(tmp_path: Path) -> None:
    """spec/invariants#durability."""
    reached: dict[int, int] = {}
    for kill, lines in enumerate((1, 150, 400)):
        first = 1 + kill * 100_000
        reached |= acknowledged_until_killed(tmp_path, first, lines)
        store = open_database(tmp_path)
        for uid, rank in reached.items():
            # The step in progress at the kill may be stored or not, one per job.
            assert await stored_rank(store, uid) in (rank, rank + 1)
        for uid in range(first, max(reached, default=first) + 17):
            await stored_rank(store, uid)
        assert await store.ledger.acquire("after") >= 2
        job = make_job(first + 99_999)
        await store.intake.create(NewWork(job))
        live = live_job(await store.ledger.load(job.uid))
        epoch = await store.ledger.acquire("after")
        await store.ledger.commit(epoch, step(live, JobState.FAILED))
        store.close()
    assert len(reached) > 100


class LockedConnection:
    """A database locked by another process until `gives_up` is set. `tries` counts the attempts to
    lock it."""

    def __init__(self) -> None:
        self.waits, self.gives_up, self.tries = threading.Event(), threading.Event(), 0
        self.in_transaction = False

    def execute(self, statement: str) -> None:
        assert statement == "BEGIN IMMEDIATE"
        self.tries += 1
        self.waits.set()
        assert self.gives_up.wait(60)
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    def close(self) -> None:
        pass


async def test_writes_to_a_locked_database_wait_for_only_one_timeout() -> None:
    """Writes that arrive while the first one waits are rejected together with it."""
    connection: Any = LockedConnection()
    files: Any = SimpleNamespace(fault={connection: None}.get)
    writer = Writer(connection, files)
    begun = [asyncio.ensure_future(writer.run("first", str))]
    await asyncio.to_thread(connection.waits.wait)
    begun += [asyncio.ensure_future(writer.run("more", str)) for _ in range(2000)]
    await asyncio.sleep(0)  # Every task has queued its write.
    connection.gives_up.set()
    results = await asyncio.gather(*begun, return_exceptions=True)
    assert {type(result) for result in results} == {Unavailable} and connection.tries == 1
    writer.close()
