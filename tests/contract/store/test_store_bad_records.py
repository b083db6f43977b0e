"""An unreadable record: only that record is missing, and all others remain available."""

import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.store.metadata_samples import (
    STORE,
    artifact,
    edge,
    execution,
    make_board,
    make_curve,
    make_metadata_store,
    make_node,
    make_progress,
    tracking_stores,
)
from tests.contract.store.store_samples import T0, cancel, entry, live_job, make_job, operation, step
from tests.contract.store.study_samples import (
    make_dataset,
    make_evaluation,
    make_study,
    make_trial,
    make_version,
    measurement,
    register_model,
)
from trainshed.core.errors import FailedPrecondition, NotFound
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.study.records import StudyUid
from trainshed.store.port import JobQuery, NewWork
from trainshed.store.sqlite.connections import log_once
from trainshed.store.sqlite.copying import unreadable_in
from trainshed.store.sqlite.database import DATABASE_FILE, Store, open_database
from trainshed_tracking.metadata.records import EdgeRole, Node, NodeKind
from trainshed_tracking.tensorboards.records import Level

STUDY = StudyUid(30)
PLACE = {"project_id": "p", "location": "us-central1"}
Read = Callable[[Store], Awaitable[Any]]


async def lineage_nodes(store: Store) -> tuple[Node, ...]:
    return (await tracking_stores(store).metadata.lineage(execution("x1"))).nodes


READS: dict[tuple[str, str], tuple[Read, ...]] = {
    ("jobs", "record"): (
        lambda store: store.ledger.load_live(),
        lambda store: store.reader.jobs(JobQuery("p", None, None)),
    ),
    ("jobs", "labels"): (lambda store: store.ledger.load_live(),),
    ("timeline", "details"): (lambda store: store.reader.timeline(JobUid(1)),),
    ("intents", "intent"): (lambda store: store.ledger.load_live(),),
    ("operations", "record"): (lambda store: store.reader.operations("projects/p/locations/l", "", 9),),
    ("studies", "record"): (lambda store: store.studies.list(PLACE),),
    ("trials", "record"): (
        lambda store: store.studies.trials(STUDY, 0, 9),
        lambda store: store.studies.history([STUDY]),
    ),
    ("measurements", "record"): (lambda store: store.studies.measurements(STUDY),),
    ("model_versions", "record"): (
        lambda store: store.models.models("p", "us-central1"),
        lambda store: store.models.versions(make_version("m", 2).name),
    ),
    ("model_evaluations", "record"): (
        lambda store: store.evaluations.list(PLACE | {"model_id": "m", "version": 1}),
    ),
    ("tensorboard_resources", "record"): (
        lambda store: tracking_stores(store).tensorboards.list(
            {"parent": "projects/p/locations/us-central1", "level": Level.TENSORBOARD}
        ),
    ),
    ("curve_files", "record"): (lambda store: store.curves.files(JobUid(1)),),
    ("curve_series", "record"): (lambda store: store.curves.series(JobUid(1)),),
    ("datasets", "record"): (lambda store: store.datasets.list(PLACE),),
    ("metadata_stores", "record"): (lambda store: tracking_stores(store).metadata_stores.list(PLACE),),
    ("metadata_nodes", "record"): (
        lambda store: tracking_stores(store).metadata.nodes(STORE, NodeKind.ARTIFACT),
        lineage_nodes,
    ),
}
"""The (table, column) of all decoded values, and the calls that return several of those records."""
BAD: dict[str, Callable[[bytes], bytes]] = {
    "no JSON": lambda raw: b"\xff\x00 nonsense " + raw,
    "cut": lambda raw: raw[: len(raw) // 2],
    "empty": lambda raw: b"",
    "another type": lambda raw: b"17",
}


async def fill(store: Store) -> None:
    """Store two records of every kind."""
    for number in (1, 2):
        await store.intake.create(NewWork(make_job(number), (entry("created"), entry("queued"))))
        await store.intake.request_cancel(make_job(number).name, cancel())
        await register_model(
            store, make_version("m", number, *(["default"] * (number == 1))), operation(10 + number)
        )
    await register_model(store, make_version("n", 1, "default"), operation(20))
    for number in (1, 2):
        await store.evaluations.create(make_evaluation(number))
    for number, name in enumerate((STORE, replace(STORE, store_id="other"))):
        await tracking_stores(store).metadata_stores.create(make_metadata_store(name), operation(30 + number))
    for number in (1, 2):
        await tracking_stores(store).metadata.create(make_node(artifact(f"a{number}")))
        await tracking_stores(store).metadata.create(make_node(execution(f"x{number}")))
    await tracking_stores(store).metadata.link(
        [
            edge(execution("x1"), EdgeRole.INPUT, artifact("a1")),
            replace(edge(execution("x1"), EdgeRole.OUTPUT, artifact("a2")), labels=(("a", "b"),)),
        ]
    )
    await tracking_stores(store).tensorboards.create_all([make_board("t1"), make_board("t2")])
    for path in ("a", "b"):
        series = make_curve(ord(path), path, "loss")
        await store.curves.put(JobUid(1), make_progress(path), (series,))
    for number in (1, 2):
        await store.datasets.create(make_dataset(number), operation(60 + number))
    for number in (30, 31):
        await store.studies.create(make_study(number))
    for number in (1, 2):
        await store.studies.create_trial(make_trial(30, number), [measurement(number, 0.5)])


@pytest.fixture
async def data(tmp_path: Path) -> AsyncIterator[Path]:
    store = open_database(tmp_path)
    await fill(store)
    store.close()
    yield tmp_path


def spoil(data: Path, table: str, column: str, change: Callable[[bytes], bytes]) -> bytes:
    """Damage one column of a row, and return its new value."""
    with closing(sqlite3.connect(data / DATABASE_FILE)) as connection, connection:
        columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
        keys = [name for _, name, _, _, _, place in columns if place] or ["rowid"]
        order = {"studies": "uid DESC"}.get(table, "1")
        *key, raw = connection.execute(
            f"SELECT {', '.join(keys)}, {column} FROM {table} ORDER BY {order} LIMIT 1"
        ).fetchone()
        where = " AND ".join(f"{name} = ?" for name in keys)
        spoilt = change(raw)
        done = connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (spoilt, *key))
        assert done.rowcount == 1
        return spoilt


@pytest.mark.parametrize(
    ("table", "column", "how"),
    [(*place, "cut") for place in READS] + [("jobs", "record", how) for how in BAD if how != "cut"],
)
async def test_unreadable_record_is_skipped_and_other_records_are_read(
    data: Path, table: str, column: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_database(data)
    whole = [len(await read(store)) for read in READS[table, column]]
    store.close()
    assert list(unreadable_in(data / DATABASE_FILE)) == []
    spoil(data, table, column, BAD[how])
    log_once.cache_clear()
    store = open_database(data)
    for read, before in zip(READS[table, column], whole, strict=True):
        assert len(await read(store)) >= before - 1
        assert await read(store)
    store.close()
    errors = [text for _, level, text in caplog.record_tuples if level == logging.ERROR]
    assert len(errors) == 1 and f"table {table} of" in errors[0]
    (bad,) = unreadable_in(data / DATABASE_FILE) if table != "intents" else [table]
    assert bad.startswith(table)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE works SET kind = 'banana' WHERE uid = 1", "banana"),
        ("UPDATE works SET kind = CAST(x'ff' AS TEXT) WHERE uid = 1", "is not a valid WorkKind"),
        (
            "UPDATE jobs SET record = CAST(replace(CAST(record AS TEXT), '\"QUEUED\"', '\"DREAMING\"') AS "
            "BLOB) WHERE uid = 1",
            "DREAMING",
        ),
    ],
)
async def test_unknown_enum_value_in_the_record_of_a_job_makes_only_that_job_unreadable(
    data: Path, statement: str, problem: str
) -> None:
    with closing(sqlite3.connect(data / DATABASE_FILE)) as connection, connection:
        assert connection.execute(statement).rowcount == 1
    store = open_database(data)
    assert [live.job.uid for live in await store.ledger.load_live()] == [2]
    assert await store.ledger.load(JobUid(1)) is None
    for read in (store.reader.job_by_uid(JobUid(1)), store.reader.find(make_job(1).name.job_id)):
        with pytest.raises(FailedPrecondition, match=f"table jobs .*{problem}.*restore an earlier backup"):
            await read
    with pytest.raises(NotFound):
        await store.reader.job_by_uid(JobUid(3))
    store.close()


async def test_call_that_needs_an_unreadable_job_record_is_rejected(data: Path) -> None:
    spoil(data, "jobs", "record", BAD["cut"])
    store = open_database(data)
    for call in (
        store.reader.job(make_job(1).name),
        store.intake.replace_labels(make_job(1).name, (("a", "b"),), "", T0),
    ):
        with pytest.raises(FailedPrecondition, match="table jobs"):
            await call
    store.close()


@pytest.mark.parametrize("change", ["kind = 'banana'", "intent = x'7b'"])
async def test_stored_intent_of_an_unknown_type_can_be_consumed(data: Path, change: str) -> None:
    with closing(sqlite3.connect(data / DATABASE_FILE)) as connection, connection:
        connection.execute(f"UPDATE intents SET {change} WHERE job_uid = 1")
    store = open_database(data)
    first, second = await store.ledger.load_live()
    assert [intent.event for intent in first.intents] == [None]
    assert [intent.event for intent in second.intents] == [cancel()]
    epoch = await store.ledger.acquire("test")
    ends = step(live_job(first), JobState.CANCELLED, consumed=first.intents[-1].seq)
    assert await store.ledger.commit(epoch, ends)
    store.close()
