"""The cost of lists next to many trials, in steps of SQLite's virtual machine."""

import sqlite3
from pathlib import Path
from typing import Any

from tests.contract.store.store_samples import make_job
from tests.contract.store.study_samples import child, make_pipeline, make_tuning
from trainshed.core.names import Api, Collection
from trainshed.core.works import Work
from trainshed.store.port import JobQuery, NewWork
from trainshed.store.sqlite.database import DATABASE_FILE, open_database
from trainshed.store.sqlite.narrowing import walk


def steps(directory: Path, sql: str, parameters: dict[str, Any]) -> int:
    """Return the number of instructions that SQLite needs for all rows."""
    connection = sqlite3.connect(directory / DATABASE_FILE)
    count = 0

    def count_step() -> int:
        nonlocal count
        count += 1
        return 0

    connection.set_progress_handler(count_step, 1)
    connection.execute(sql, parameters).fetchall()
    connection.close()
    return count


OWN = [
    JobQuery(None, None, None, limit=5),
    JobQuery("p", None, None, limit=5),
    JobQuery("p", Api.ML, None, limit=5),
    JobQuery("p", Api.VERTEX, None, limit=5),
    JobQuery("p", Api.VERTEX, "us-central1", limit=5, collection=Collection.TUNING_JOBS),
    JobQuery("p", Api.VERTEX, "us-central1", limit=5, collection=Collection.PIPELINES),
]


async def test_cost_of_listing_jobs_does_not_grow_with_the_number_of_trials(tmp_path: Path) -> None:
    """spec/invariants#finished-jobs, for the jobs of trials: listing top-level jobs costs the same
    as without any trial jobs."""
    store = open_database(tmp_path)
    tuning, ml = make_tuning(1), make_tuning(2, "census", api=Api.ML)
    own: list[Work] = [tuning, ml]
    own += [make_pipeline(uid) for uid in range(3, 10)]
    own += [make_tuning(uid) for uid in range(10, 17)]
    own += [make_job(uid, api=Api.ML) for uid in range(17, 24)]
    await store.intake.create(*(NewWork(work) for work in own))
    before = [steps(tmp_path, *_listing(query)) for query in OWN]
    trials = [child(parent, 2 * n + 100 + parent.uid, n) for n in range(400) for parent in own[:2]]
    await store.intake.create(*(NewWork(trial) for trial in trials))
    for query, less in zip(OWN, before, strict=True):
        after = steps(tmp_path, *_listing(query))
        # A few steps for one more lookup, whose number depends on SQLite; no step for each of its
        # 800 trials.
        assert after <= less + len(trials) / 2, query
        assert len(await store.reader.jobs(query)) == 5
    store.close()


def _listing(query: JobQuery) -> tuple[str, dict[str, Any]]:
    through = walk(query)
    return f"{through.sql} LIMIT :limit", through.parameters
