"""Write the database dump of a release: `python -m tests.contract.store.database_dump > VERSION.sql`
(`dumps/README.md`)."""

import asyncio
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.contract.store.metadata_samples import (
    context,
    make_board,
    make_curve,
    make_metadata_store,
    make_node,
    make_progress,
    tracking_stores,
)
from tests.contract.store.store_samples import (
    T0,
    cancel,
    drill,
    end_job,
    entry,
    live_job,
    make_job,
    operation,
    step,
)
from tests.contract.store.study_samples import (
    child,
    finished_operation,
    make_dataset,
    make_evaluation,
    make_pipeline,
    make_study,
    make_trial,
    make_tuning,
    make_version,
    measurement,
    register_model,
    suggesting,
)
from trainshed.core.capacity import QuotaKey
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, JobUid
from trainshed.core.notifications import Notification, Occasion
from trainshed.core.study.records import StudyUid
from trainshed.core.works import Work
from trainshed.store.port import JobQuery, NewWork, NodeDrain
from trainshed.store.sqlite.database import DATABASE_FILE, Store, open_database


async def fill(store: Store) -> None:
    """Store records of every kind."""
    search, pipeline = make_tuning(10), make_pipeline(20)
    works: list[Work] = [make_job(1), make_job(2, "census", api=Api.ML), make_job(3)]
    works += [search, pipeline, child(search, 11), make_job(4, location="europe-west4")]
    await store.intake.create(*(NewWork(work, (entry("created"),)) for work in works))
    await store.intake.request_cancel(works[1].name, cancel())
    await store.intake.order_drill(works[1].name, drill(at_line="^step 7$"))
    await end_job(store, make_job(3))
    epoch, live = await store.ledger.acquire("release"), await store.ledger.load(JobUid(1))
    sent = Notification(JobUid(1), "ops", Occasion.FAILED, T0, "{}")
    changed = step(live_job(live), JobState.RUNNING, "running")
    await store.ledger.commit(epoch, replace(changed, notifications=(sent,)))
    await store.intake.replace_labels(works[0].name, (("team", "b"),), "", T0 + 9)
    await store.intake.delete_job(make_job(3).name, operation(1))
    await store.intake.drain_node(NodeDrain("n2", T0, "new disk"))
    await store.intake.set_quota(QuotaKey("p", "us-central1", "cpus"), 2.5)
    await store.studies.create(make_study(30))
    await store.studies.create_trial(make_trial(30), [measurement(1, 0.25)])
    await store.studies.begin_operation(suggesting(5, 30))
    await register_model(store, make_version("m", 1, "default", "champion"), finished_operation(1))
    await store.evaluations.create(make_evaluation(1))
    await tracking_stores(store).metadata_stores.create(make_metadata_store(), finished_operation(3))
    await tracking_stores(store).metadata.create(make_node(context("e")))
    await tracking_stores(store).tensorboards.create(make_board("t"))
    await store.curves.put(JobUid(1), make_progress("events"), (make_curve(1, "", "loss"),))
    await store.datasets.create(make_dataset(1), finished_operation(4))
    await store.secrets.add("p", "db", T0, lambda _: b"sealed")


async def contents(store: Store) -> dict[str, Any]:
    """Return all values that a service reads from a store."""
    reader, version = store.reader, make_version("m", 1)
    return {
        "live": await store.ledger.load_live(),
        "works": await reader.jobs(JobQuery(None, None, None)),
        "trials' jobs": await reader.children(JobUid(10)),
        "found": await reader.find("census"),
        "timelines": [await reader.timeline(JobUid(uid)) for uid in (1, 2, 10)],
        "operations": [await reader.operation(finished_operation(number).name) for number in (1, 3, 4)],
        "deleted": await reader.operation(operation(1).name),
        "drained": await reader.drained_nodes(),
        "quotas": await reader.quotas(),
        "study": await store.studies.study_by_uid(StudyUid(30)),
        "trials": await store.studies.history([StudyUid(30)]),
        "measurements": await store.studies.measurements(StudyUid(30)),
        "running": await store.studies.running_operations(),
        "versions": await store.models.versions(version.name),
        "champion": await store.models.version(version.name, "champion"),
        "evaluation": await store.evaluations.get(make_evaluation(1).name),
        "metadata": await tracking_stores(store).metadata_stores.get(make_metadata_store().name),
        "node": await tracking_stores(store).metadata.get(context("e")),
        "board": await tracking_stores(store).tensorboards.get(make_board("t").name),
        "curve files": await store.curves.files(JobUid(1)),
        "curves": await store.curves.series(JobUid(1)),
        "dataset": await store.datasets.get(make_dataset(1).name),
        "secrets": await store.secrets.versions("p"),
        "notifications": await store.notifications.waiting(9),
    }


def dump(directory: Path) -> str:
    """Return SQL that recreates the database of a data directory."""
    with closing(sqlite3.connect(directory / DATABASE_FILE)) as connection:
        pragmas = [
            f"PRAGMA {name} = {connection.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in ("application_id", "user_version")
        ]
        return "\n".join([*pragmas, *connection.iterdump(), ""])


async def dump_of_new_store(directory: Path) -> str:
    """Create a store with records of every kind in the directory, and return its dump."""
    store = open_database(directory)
    await fill(store)
    store.close()
    return dump(directory)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        sys.stdout.write(asyncio.run(dump_of_new_store(Path(scratch))))
