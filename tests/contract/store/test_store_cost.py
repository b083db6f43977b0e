"""What calls cost beside a long history: steps of SQLite's machine where they tell, time as a ratio where
not."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.store.store_samples import make_job
from tests.contract.store.study_samples import (
    child,
    make_pipeline,
    make_study,
    make_trial,
    make_tuning,
    measured,
    suggesting,
)
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import Api, Collection
from trainshed.core.study.records import TrialState
from trainshed.core.works import Work
from trainshed.store.port import Commit, JobQuery, NewWork, Store, open_store
from trainshed.store.sqlite.connections import load_statements
from trainshed.store.sqlite.database import DATABASE_FILE
from trainshed.store.sqlite.narrowing import walk

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def steps(directory: Path, sql: str, parameters: dict[str, Any]) -> int:
    """How many instructions SQLite needs for all rows."""
    connection = sqlite3.connect(directory / DATABASE_FILE)
    count = 0

    def counted() -> int:
        nonlocal count
        count += 1
        return 0

    connection.set_progress_handler(counted, 1)
    connection.execute(sql, parameters).fetchall()
    connection.close()
    return count


OWN = [
    JobQuery("", None, None, limit=5),
    JobQuery("p", None, None, limit=5),
    JobQuery("p", Api.ML, None, limit=5),
    JobQuery("p", Api.ML, "", limit=5),
    JobQuery("p", Api.VERTEX, None, limit=5),
    JobQuery("p", Api.VERTEX, "us-central1", limit=5),
    JobQuery("p", Api.VERTEX, "us-central1", limit=5, collection=Collection.TUNING_JOBS),
    JobQuery("p", Api.VERTEX, None, limit=5, collection=Collection.PIPELINES),
]


async def test_a_list_costs_the_same_beside_any_number_of_trials(tmp_path: Path) -> None:
    """spec/invariants#finished-jobs, for the jobs of trials: what clients made is listed as if there were no
    other."""
    store = open_store("sqlite", tmp_path)
    tuning, ml = make_tuning(1), make_tuning(2, "census", api=Api.ML)
    own: list[Work] = [tuning, ml]
    own += [make_pipeline(uid) for uid in range(3, 10)]
    own += [make_tuning(uid) for uid in range(10, 17)]
    own += [make_job(uid, api=Api.ML) for uid in range(17, 24)]
    await store.intake.create_jobs([NewWork(work) for work in own])
    before = [steps(tmp_path, *_listing(tmp_path, query)) for query in OWN]
    trials = [child(parent, 2 * n + 100 + parent.uid, n) for n in range(400) for parent in own[:2]]
    await store.intake.create_jobs([NewWork(trial) for trial in trials])
    for query, less in zip(OWN, before, strict=True):
        after = steps(tmp_path, *_listing(tmp_path, query))
        # Some for one more place that is looked into, none for each of its 800 trials.
        assert after <= less + 60, query
        assert len(await store.reader.jobs(query)) == 5
    store.close()


def _listing(directory: Path, query: JobQuery) -> tuple[str, dict[str, Any]]:
    with closing(sqlite3.connect(directory / DATABASE_FILE)) as connection:
        through = walk(connection, query)
    return f"{through.sql} LIMIT :limit", through.parameters


async def test_running_operations_cost_the_same_beside_any_number_of_done_ones(
    tmp_path: Path,
) -> None:
    """spec/invariants#finished-jobs, for operations."""
    operations = load_statements("operations.sql")
    store = open_store("sqlite", tmp_path)
    await store.studies.create_study(make_study(1))
    await store.studies.begin_operation(suggesting(0, 1))
    asked: list[tuple[str, dict[str, Any]]] = [
        (operations["running_operations"], {}),
        (operations["running_operations_of_study"], {"study_uid": 1}),
    ]
    before = [steps(tmp_path, *each) for each in asked]
    for number in range(1, 100):
        running = suggesting(number, 1)
        await store.studies.begin_operation(running)
        await store.studies.finish_operation(replace(running, state=OperationState.SUCCEEDED))
    assert [steps(tmp_path, *each) for each in asked] == before
    store.close()


async def quickest(call: Callable[[], Any]) -> float:
    """Seconds of the quickest of several calls: the others were held up."""
    times: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return min(times)


async def test_a_history_of_20_000_trials_is_read_in_a_few_times_of_a_plain_read(
    tmp_path: Path,
) -> None:
    """Issue: under half a second for a suggestion at 20,000 trials, of which this is a small part."""
    store: Store = open_store("sqlite", tmp_path)
    tuning = make_tuning(1)
    await store.intake.create_job(tuning, [])
    trials = tuple(make_trial(1, number, TrialState.SUCCEEDED) for number in range(1, 20_001))
    measurements = tuple((number, measured(1, 0.5)) for number in range(1, 20_001))
    commit = Commit(tuning, 1, trials=trials, measurements=measurements)
    await store.ledger.commit(await store.ledger.acquire("a"), commit)
    assert await store.studies.history([tuning.study]) == trials
    connection = sqlite3.connect(tmp_path / DATABASE_FILE)

    async def plain() -> None:
        rows = connection.execute("SELECT record FROM trials WHERE study_uid = 1 ORDER BY number")
        assert len(rows.fetchall()) == 20_000

    ratio = await quickest(lambda: store.studies.history([tuning.study])) / await quickest(plain)
    assert ratio < 15
    connection.close()
    store.close()
