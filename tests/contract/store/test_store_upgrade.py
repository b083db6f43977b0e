"""What former releases stored is opened by today's code: a dump per schema, each made by its own release.

A dump is made once, when its schema is released, and never edited.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.store.store_samples import SECOND, T0, drill, entry
from trainshed.core.lifecycle.events import (
    CancelCause,
    CancelRequested,
    DrillOrdered,
    TimelineEntry,
)
from trainshed.core.lifecycle.records import JobError
from trainshed.core.lifecycle.states import AttemptState, JobState, ReplicaState
from trainshed.core.names import Api, JobName, JobUid
from trainshed.store.port import Commit, Intent, JobQuery, Store
from trainshed.store.registry import open_store
from trainshed.store.sqlite.database import DATABASE_FILE
from trainshed.store.sqlite.schema import scripts

DUMPS = Path(__file__).parent / "dumps"

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def upgraded(tmp_path: Path) -> Iterator[Store]:
    """The store that release 0.1.0 (schema 1) left behind."""
    connection = sqlite3.connect(tmp_path / DATABASE_FILE)
    connection.executescript((DUMPS / "0001.sql").read_text(encoding="utf-8"))
    connection.close()
    store = open_store("sqlite", tmp_path)
    yield store
    store.close()


def test_every_former_schema_has_a_dump() -> None:
    assert [path.name for path in sorted(DUMPS.iterdir())] == [
        f"{number:04}.sql" for number, _ in scripts()[:-1]
    ]


@pytest.mark.parametrize(
    ("job_id", "state", "phase"),
    [
        ("queued", JobState.QUEUED, AttemptState.WAITING),
        ("asked", JobState.QUEUED, AttemptState.WAITING),
        ("preparing", JobState.PREPARING, AttemptState.PREPARING),
        ("launched", JobState.PREPARING, AttemptState.STARTING),
        ("starting", JobState.PREPARING, AttemptState.STARTING),
        ("running", JobState.RUNNING, AttemptState.RUNNING),
        ("worker_done", JobState.RUNNING, AttemptState.RUNNING),
        ("cancelling", JobState.CANCELLING, AttemptState.STOPPING),
        ("failing", JobState.RUNNING, AttemptState.STOPPING),
        ("succeeded", JobState.SUCCEEDED, AttemptState.OVER),
        ("failed", JobState.FAILED, AttemptState.OVER),
        ("cancelled", JobState.CANCELLED, AttemptState.OVER),
    ],
)
async def test_a_job_of_schema_1_stands_where_it_stood(
    upgraded: Store, job_id: str, state: JobState, phase: AttemptState
) -> None:
    job, _ = await upgraded.reader.find(job_id)
    assert (job.state, job.phase) == (state, phase)
    assert (await upgraded.ledger.load(job.uid) is None) == state.is_final
    assert job.spec.pools[0].program.args == ("--name", 'größe "1" \\ \u2028\U0001f600\x00')
    assert job.created == T0 + job.uid
    assert (job.retry, job.retries, job.drills, job.memory_factor) == (None, (), (), 1.0)


async def test_all_else_of_schema_1_is_there(upgraded: Store) -> None:
    live = {each.job.name.job_id: each for each in await upgraded.ledger.load_live()}
    assert len(live) == 9
    cancel = CancelRequested(CancelCause.MAX_WAIT, T0 + 5 * SECOND)
    assert live["asked"].intents == (Intent(1, cancel),)
    assert live["queued"].job.labels == (("team", "b"),)
    assert live["queued"].job.updated == T0 + 40 * SECOND
    assert live["running"].job.name == JobName(Api.ML, "p", "", "running")
    assert live["starting"].generation == 4
    replicas = live["worker_done"].job.replicas
    assert [replica.state for replica in replicas] == [ReplicaState.RUNNING, ReplicaState.EXITED]
    assert replicas[1].exit and replicas[1].exit.log_lines == 3
    failed, _ = await upgraded.reader.find("failed")
    assert isinstance(failed.error, JobError) and failed.error.code == 3
    assert failed.outcome and failed.outcome.rule == "user_code_failed"
    told = await upgraded.reader.timeline(live["preparing"].job.uid)
    assert told[0] == TimelineEntry(T0, "created", "The job was created.", {"n": 1})
    assert len(told) == 2
    operations = await upgraded.reader.operations("projects/p/locations/us-central1", "", 9)
    assert [operation.name.rsplit("/")[-1] for operation in operations] == ["77"]
    assert len(await upgraded.reader.jobs(JobQuery("p", None, None))) == 12


async def test_life_goes_on_after_the_upgrade(upgraded: Store) -> None:
    epoch = await upgraded.ledger.acquire("next release")
    assert epoch == 2
    asked, _ = await upgraded.reader.find("asked")
    await upgraded.intake.order_drill(asked.name, drill())
    live = await upgraded.ledger.load(JobUid(asked.uid))
    assert live
    assert [type(each.event) for each in live.intents] == [CancelRequested, DrillOrdered]
    commit = Commit(live.job, live.generation, (entry("went on"),), live.intents[-1].seq)
    assert await upgraded.ledger.commit(epoch, commit) == live.generation + 1
    again = await upgraded.ledger.load(asked.uid)
    assert again and again.intents == () and again.job == asked
