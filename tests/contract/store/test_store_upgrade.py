"""What former releases stored is opened by today's code: a dump per schema, each made by its own release.

A dump is made once, when its schema is released, and never edited.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.contract.store.metadata_samples import (
    context,
    make_board,
    make_curve,
    make_metadata_store,
    make_node,
    make_progress,
)
from tests.contract.store.store_samples import (
    SECOND,
    T0,
    drill,
    entry,
    job_of,
    make_job,
    operation,
    quota_key,
)
from tests.contract.store.study_samples import (
    make_dataset,
    make_pipeline,
    make_resource,
    make_trial,
    make_tuning,
    make_version,
    measured,
    suggesting,
)
from trainshed.core.capacity import UNLIMITED
from trainshed.core.errors import AlreadyExists, NotFound
from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle.events import (
    CancelCause,
    CancelRequested,
    DrillOrdered,
    TimelineEntry,
)
from trainshed.core.lifecycle.states import AttemptState, JobState, OperationState, ReplicaState
from trainshed.core.names import Api, Collection, JobName, JobUid
from trainshed.core.notifications import Notification, Occasion
from trainshed.core.study.records import StudyUid
from trainshed.store.conditions import Column, Condition, Created, Equal, Labelled
from trainshed.store.port import Commit, Intent, JobQuery, NodeDrain, Store, open_store
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite.database import DATABASE_FILE
from trainshed.store.sqlite.schema import scripts

DUMPS = Path(__file__).parent / "dumps"

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def opened(directory: Path, schema: int) -> Iterator[Store]:
    connection = sqlite3.connect(directory / DATABASE_FILE)
    connection.executescript((DUMPS / f"{schema:04}.sql").read_text(encoding="utf-8"))
    connection.close()
    store = open_store("sqlite", directory)
    yield store
    store.close()


@pytest.fixture
def upgraded(tmp_path: Path) -> Iterator[Store]:
    """The store that release 0.1.0 (schema 1) left behind."""
    yield from opened(tmp_path, 1)


@pytest.fixture
def upgraded_from_3(tmp_path: Path) -> Iterator[Store]:
    """The store that the last release with schema 3 left behind."""
    yield from opened(tmp_path, 3)


@pytest.fixture
def upgraded_from_4(tmp_path: Path) -> Iterator[Store]:
    """The store that the last release with schema 4 left behind."""
    yield from opened(tmp_path, 4)


@pytest.fixture
def upgraded_from_5(tmp_path: Path) -> Iterator[Store]:
    """The store that the last release with schema 5 left behind."""
    yield from opened(tmp_path, 5)


@pytest.fixture
def upgraded_from_6(tmp_path: Path) -> Iterator[Store]:
    """The store that the last release with schema 6 left behind."""
    yield from opened(tmp_path, 6)


@pytest.fixture
def upgraded_from_7(tmp_path: Path) -> Iterator[Store]:
    """The store that the last release with schema 7 left behind."""
    yield from opened(tmp_path, 7)


@pytest.fixture
def upgraded_from_8(tmp_path: Path) -> Iterator[Store]:
    """The store that the last release with schema 8 left behind."""
    yield from opened(tmp_path, 8)


@pytest.fixture
def upgraded_from_9(tmp_path: Path) -> Iterator[Store]:
    """The store that the last release with schema 9 left behind."""
    yield from opened(tmp_path, 9)


@pytest.fixture
def upgraded_from_2(tmp_path: Path) -> Iterator[Store]:
    """The store that the last release with schema 2 left behind."""
    yield from opened(tmp_path, 2)


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
    job = job_of((await upgraded.reader.find(job_id))[0])
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
    replicas = job_of(live["worker_done"].job).replicas
    assert [replica.state for replica in replicas] == [ReplicaState.RUNNING, ReplicaState.EXITED]
    assert replicas[1].exit and replicas[1].exit.log_lines == 3
    failed = job_of((await upgraded.reader.find("failed"))[0])
    assert isinstance(failed.error, JobError) and failed.error.code == 3
    assert failed.outcome and failed.outcome.rule == "user_code_failed"
    told = await upgraded.reader.timeline(live["preparing"].job.uid)
    assert told[0] == TimelineEntry(T0, "created", "The job was created.", {"n": 1})
    assert len(told) == 2
    (deleted,) = await upgraded.reader.operations("projects/p/locations/us-central1", "", 9)
    assert deleted.name == "projects/p/locations/us-central1/operations/77"
    assert (deleted.kind, deleted.state) == (OperationKind.DELETE, OperationState.SUCCEEDED)
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


async def test_a_job_of_schema_2_stands_where_it_stood(upgraded_from_2: Store) -> None:
    reader = upgraded_from_2.reader
    live = {each.job.name.job_id: each for each in await upgraded_from_2.ledger.load_live()}
    assert list(live) == ["queued", "asked", "running", "retrying", "elsewhere"]
    assert (live["queued"].job.labels, live["queued"].job.updated) == (
        (("team", "b"),),
        T0 + 40 * SECOND,
    )
    running, retrying = job_of(live["running"].job), job_of(live["retrying"].job)
    assert running.name == JobName(Api.ML, "p", "", "running")
    assert (running.state, running.phase) == (JobState.RUNNING, AttemptState.RUNNING)
    assert (running.drills, running.memory_factor) == ((drill(),), 1.5)
    assert running.replicas[0].restarts == (("replica_lost", 2),)
    assert (retrying.phase, retrying.retries) == (
        AttemptState.STOPPING,
        (("internal_error", 1),),
    )
    assert retrying.retry and retrying.retry.not_before == T0 + 60 * SECOND
    assert [type(each.event) for each in live["asked"].intents] == [CancelRequested]
    assert [each.event for each in live["running"].intents] == [
        DrillOrdered(drill(at_line="^step 7$"))
    ]
    failed = job_of((await reader.find("failed"))[0])
    assert (failed.parent, failed.phase) == (None, AttemptState.OVER)
    assert failed.error and failed.error.replica == "workerpool0-0"
    assert (await reader.job(failed.name))[0] == failed
    assert [told.kind for told in await reader.timeline(failed.uid)] == ["created", "went on"]


async def test_all_else_of_schema_2_is_there(upgraded_from_2: Store) -> None:
    reader = upgraded_from_2.reader
    deleted = "projects/p/locations/us-central1"
    assert await reader.operation(f"{deleted}/operations/77") == Operation(
        f"{deleted}/operations/77",
        OperationKind.DELETE,
        f"{deleted}/customJobs/deleted",
        T0 + 10 * SECOND,
        T0 + 10 * SECOND,
    )
    assert await upgraded_from_2.studies.running_operations() == ()
    assert await reader.drained_nodes() == (NodeDrain("n2", T0, "new disk"),)
    assert dict(await reader.quotas()) == {
        quota_key(): UNLIMITED,
        quota_key(metric="disk_gb"): 2.5,
    }
    with pytest.raises(AlreadyExists):
        await upgraded_from_2.intake.create_job(make_job(99, "deleted"), [])


@pytest.mark.parametrize(
    ("query", "job_ids"),
    [
        (JobQuery("", None, None), "elsewhere failed succeeded retrying running asked queued"),
        (JobQuery("p", None, None), "elsewhere failed succeeded retrying running asked queued"),
        (JobQuery("p", Api.ML, None), "running"),
        (JobQuery("p", Api.VERTEX, "europe-west4"), "elsewhere"),
        (
            JobQuery("p", Api.VERTEX, "us-central1", collection=Collection.CUSTOM_JOBS),
            "failed succeeded retrying asked queued",
        ),
        (JobQuery("p", Api.VERTEX, "us-central1", collection=Collection.TUNING_JOBS), ""),
    ],
)
async def test_jobs_of_schema_2_are_in_the_lists(
    upgraded_from_2: Store, query: JobQuery, job_ids: str
) -> None:
    found = await upgraded_from_2.reader.jobs(query)
    assert [job.name.job_id for job, _ in found] == job_ids.split()


async def test_life_goes_on_after_the_upgrade_from_2(upgraded_from_2: Store) -> None:
    epoch = await upgraded_from_2.ledger.acquire("next release")
    asked, _ = await upgraded_from_2.reader.find("asked")
    live = await upgraded_from_2.ledger.load(asked.uid)
    assert live
    over = replace(job_of(live.job), state=JobState.CANCELLED, phase=AttemptState.OVER)
    commit = Commit(over, live.generation, (entry("ended"),), live.intents[-1].seq)
    assert await upgraded_from_2.ledger.commit(epoch, commit) == live.generation + 1
    await upgraded_from_2.intake.delete_job(asked.name, operation(78))
    assert len(await upgraded_from_2.reader.jobs(JobQuery("p", None, None))) == 6


async def test_all_of_schema_3_is_there(upgraded_from_3: Store) -> None:
    store = upgraded_from_3
    live = {each.job.name.job_id: each.job for each in await store.ledger.load_live()}
    assert list(live) == ["queued", "asked", "running", "search", "job11", "pipe20", "job21"]
    running = job_of(live["running"])
    assert (running.name, running.state) == (JobName(Api.ML, "p", "", "running"), JobState.RUNNING)
    over = job_of((await store.reader.find("over"))[0])
    assert over.state is JobState.SUCCEEDED
    assert live["search"] == make_tuning(10, "search")
    assert live["pipe20"] == make_pipeline(20)
    assert [work.uid for work in await store.reader.children(JobUid(10))] == [11]
    assert (await store.studies.history((StudyUid(10), StudyUid(30)))) == (
        make_trial(10, 1),
        make_trial(30, 1),
    )
    assert await store.studies.measurements(StudyUid(30)) == {1: (measured(1, 0.25),)}
    assert await store.studies.running_operations() == (suggesting(5, 30),)
    model = make_version("m", 1, "default", "champion")
    assert await store.models.versions(model.name) == (make_version("m", 2, "new"), model)
    resource = make_resource("r")
    assert await store.models.persistent_resource(resource.name) == resource
    assert await store.reader.drained_nodes() == (NodeDrain("n2", T0, "new disk"),)


async def test_a_secret_can_be_stored_after_the_upgrade_from_3(upgraded_from_3: Store) -> None:
    assert not await upgraded_from_3.secrets.has_any()
    stored = await upgraded_from_3.secrets.add("p", "db", T0, lambda version: b"sealed")
    assert await upgraded_from_3.secrets.versions("p") == (stored,)


async def test_secrets_of_schema_4_are_there_and_nothing_is_set_aside(
    upgraded_from_4: Store,
) -> None:
    versions = await upgraded_from_4.secrets.versions("p")
    assert sorted(each.version for each in versions) == [1, 2]
    assert await upgraded_from_4.reader.set_aside() == ()
    assert len(await upgraded_from_4.ledger.load_live()) == 7


async def test_all_of_schema_5_is_there_and_experiments_can_be_recorded(
    upgraded_from_5: Store,
) -> None:
    store = upgraded_from_5
    (bad,) = await store.reader.set_aside()
    assert bad.source == "persistent_resources"
    resource = make_resource("r2")
    assert await store.models.persistent_resource(resource.name) == resource
    assert [live.job.uid for live in await store.ledger.load_live()] == [1, 2]
    await store.metadata.create_store(make_metadata_store(), operation(50))
    node = make_node(context("e"))
    await store.metadata.create(node)
    assert await store.metadata.node(node.name) == node
    board = make_board("t")
    assert await store.tensorboards.create((board,)) == (board,)


async def test_all_of_schema_6_is_there_and_curves_can_be_kept(upgraded_from_6: Store) -> None:
    store = upgraded_from_6
    assert (await store.reader.set_aside())[0].source == "persistent_resources"
    board = make_board("t1")
    assert await store.tensorboards.resource(board.name) == board
    node = make_node(context("e"))
    await store.metadata.create(node)
    curve = make_curve(5, "", "loss")
    assert await store.curves.put(JobUid(1), make_progress("events"), (curve,))
    assert await store.curves.series(JobUid(1)) == (curve,)


async def test_datasets_can_be_made_after_schema_6(upgraded_from_6: Store) -> None:
    await upgraded_from_6.datasets.create(make_dataset(1), operation(50))
    assert await upgraded_from_6.datasets.dataset(make_dataset(1).name) == make_dataset(1)


@pytest.mark.parametrize(
    "where",
    [
        Equal(Column.STATE, "QUEUED"),
        Equal(Column.DISPLAY_NAME, "display 1"),
        Labelled("team", "vision"),
        Labelled("tier"),
        Created(T0 + 1, T0 + 1),
    ],
    ids=str,
)
async def test_jobs_of_schema_7_are_found_by_what_stands_in_their_records(
    upgraded_from_7: Store, where: Condition
) -> None:
    query = JobQuery("p", None, None)
    found = await upgraded_from_7.reader.matching(query, where)
    everybody = {work.uid for work, _ in await upgraded_from_7.reader.jobs(query)}
    expected = {1, 2} if where == Equal(Column.STATE, "QUEUED") else {1}
    assert {work.uid for work, _ in found.jobs} == expected < everybody | {0}


async def test_curves_and_datasets_of_schema_7_are_there(upgraded_from_7: Store) -> None:
    assert await upgraded_from_7.curves.series(JobUid(1)) == (make_curve(5, "", "loss"),)
    dataset = make_dataset(1)
    assert await upgraded_from_7.datasets.dataset(dataset.name) == dataset


async def test_after_schema_8_somebody_can_be_told_of_its_jobs(upgraded_from_8: Store) -> None:
    store = upgraded_from_8
    first, second = await store.ledger.load_live()
    assert second.job.labels == (("team", "vision"),)
    assert await store.notifications.count() == (0, 0)
    told = Notification(first.job.uid, "ops", Occasion.FAILED, T0, "{}")
    epoch = await store.ledger.acquire("test")
    await store.ledger.commit(epoch, Commit(first.job, first.generation, notifications=(told,)))
    (waiting,) = await store.notifications.waiting(10)
    assert waiting.notification == told


NUMBERED = T0 // 10**6 << 22 | 7
"""The uid, and so the id, of a job of schema 9."""


@pytest.mark.parametrize(
    ("query", "uids"),
    [
        (JobQuery("", None, None), [NUMBERED, 5, 4, 3, 2]),
        (JobQuery("p", None, None), [NUMBERED, 5, 4, 3, 2]),
        (JobQuery("p", None, None, after=5, limit=2), [4, 3]),
        (JobQuery("p", Api.ML, None), [2]),
        (JobQuery("p", Api.VERTEX, "europe-north1"), [5]),
        (JobQuery("p", Api.VERTEX, None, collection=Collection.CUSTOM_JOBS), [NUMBERED, 6, 5]),
        (
            JobQuery("p", Api.VERTEX, "us-central1", collection=Collection.CUSTOM_JOBS),
            [NUMBERED, 6],
        ),
    ],
    ids=str,
)
async def test_works_of_schema_9_are_in_the_lists(
    upgraded_from_9: Store, query: JobQuery, uids: list[int]
) -> None:
    assert [work.uid for work, _ in await upgraded_from_9.reader.jobs(query)] == uids


@pytest.mark.parametrize(
    ("where", "uids"),
    [
        (Created(T0, T0), [NUMBERED]),
        (Created(T0 + 1, T0 + 5), [5, 4, 3, 2]),
        (Equal(Column.JOB_ID, str(NUMBERED)), [NUMBERED]),
        (Equal(Column.JOB_ID, "census"), [2]),
        (Equal(Column.STATE, "FAILED"), [5]),
    ],
    ids=str,
)
async def test_works_of_schema_9_are_found_by_their_time_and_id(
    upgraded_from_9: Store, where: Condition, uids: list[int]
) -> None:
    found = await upgraded_from_9.reader.matching(JobQuery("p", None, None), where)
    assert [work.uid for work, _ in found.jobs] == uids


async def test_jobs_of_schema_9_are_found_by_their_id_alone(upgraded_from_9: Store) -> None:
    for job_id, uid in ((str(NUMBERED), NUMBERED), ("north", 5), ("job6", 6)):
        assert (await upgraded_from_9.reader.find(job_id))[0].uid == uid
    with pytest.raises(NotFound):
        await upgraded_from_9.reader.find("5")
    (waiting,) = await upgraded_from_9.notifications.waiting(10)
    assert waiting.notification.job_uid == 5
