"""The contract of every store for filtered lists (`store.port`): the result equals a check of each
record, in steps of limited size."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.contract.store.store_samples import T0, entry, in_state, live_job, make_job, operation, step
from tests.contract.store.study_samples import make_pipeline, make_tuning
from trainshed.api.aiplatform_v1.views import STATES
from trainshed.api.filters.jobs import JobFilter, compile_job_filter
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, Collection, JobUid
from trainshed.core.works import Work
from trainshed.store.port import (
    Column,
    Condition,
    Contains,
    Either,
    Equal,
    Every,
    HasLabel,
    JobQuery,
    NewWork,
)
from trainshed.store.sqlite import narrowing
from trainshed.store.sqlite.database import Store

ALL = JobQuery(None, None, None)
COUNT = 60


def history() -> list[Work]:
    """Return jobs of two projects and two APIs in all states, with repeated names and labels."""
    made: list[Work] = [make_tuning(101), make_pipeline(102)]
    states = list(JobState)
    for uid in range(1, COUNT + 1):
        job = make_job(
            uid, f"job{uid}", project_id=("p", "q")[uid % 2], api=(Api.VERTEX, Api.ML)[uid % 3 == 0]
        )
        labels = (("team", ("vision", "sound")[uid % 2]), ("n", str(uid % 5)))[: uid % 3]
        name = ("", "größe", "train-7 of 9", "%_'x")[uid % 4]
        made.append(replace(in_state(job, states[uid % len(states)]), display_name=name, labels=labels))
    return made


FILTERS = [
    "state=JOB_STATE_RUNNING",
    "state=JOB_STATE_PAUSED",
    "state=JOB_STATE_RUNNING OR state=JOB_STATE_FAILED",
    "state!=JOB_STATE_RUNNING",
    "display_name=größe",
    'display_name=""',
    'display_name="nobody\'s"',
    'display_name="%_\'x"',
    "display_name:7",
    'display_name:"tr*9"',
    "NOT display_name:7",
    "labels.team=vision",
    "labels.team:vision",
    "labels.team:*",
    "labels.team",
    "labels:n",
    "labels.team!=vision",
    "labels.nobody=1",
    "job_id=job7",
    "job_id:job7*",
    "labels.n=1 AND state=JOB_STATE_QUEUED",
    "labels.n=1 OR display_name:train*",
    "(labels.n=1 OR labels.n=2) AND NOT state=JOB_STATE_QUEUED",
    "create_time>2025-11-20T00:00:00Z",
    "create_time<1971-01-01",
    "create_time<3000-01-01 AND labels.n=3",
    " AND ".join(["display_name:7"] * 12),
]


@pytest.fixture(params=["by an index", "one after the other"])
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, so that the few works of a test exercise both ways."""
    if request.param == "one after the other":
        monkeypatch.setattr(narrowing, "MAX_STEPS", 1)
        monkeypatch.setattr(narrowing, "MAX_CHECKED_WORKS", 7)


async def fill_store(store: Store) -> Sequence[Work]:
    made = history()
    await store.intake.create(*(NewWork(work, (entry("created"),)) for work in made))
    return made


async def list_uids(store: Store, query: JobQuery, wanted: JobFilter) -> list[int]:
    """Return all matching works, page by page."""
    assert wanted.where is not None
    uids: list[int] = []
    after = 0
    while True:
        page = await store.reader.matching(replace(query, after=after, limit=4), wanted.where)
        uids += [work.uid for work, _ in page.jobs if wanted.passes(work)]
        if page.next_after is None:
            return uids
        assert not after or page.next_after < after
        after = page.next_after


@pytest.mark.usefixtures("bounds")
async def test_sql_filter_selects_the_same_jobs_as_the_filter_function(store: Store) -> None:
    made = await fill_store(store)
    for text in FILTERS:
        wanted = compile_job_filter(text, STATES)
        expected = sorted((work.uid for work in made if wanted.passes(work)), reverse=True)
        if wanted.where is None:
            continue
        assert await list_uids(store, ALL, wanted) == expected, text
    narrowed = [text for text in FILTERS if compile_job_filter(text, STATES).where is not None]
    assert len(narrowed) > len(FILTERS) * 2 // 3


@pytest.mark.usefixtures("bounds")
@pytest.mark.parametrize(
    "query",
    [
        JobQuery("p", None, None),
        JobQuery("p", Api.ML, None),
        JobQuery("q", Api.VERTEX, None),
        JobQuery("p", Api.VERTEX, "us-central1", collection=Collection.TUNING_JOBS),
        JobQuery("p", Api.VERTEX, "us-central1", collection=Collection.CUSTOM_JOBS),
        JobQuery("nobody", None, None),
    ],
    ids=str,
)
async def test_filtered_list_stays_within_its_project_and_location(store: Store, query: JobQuery) -> None:
    await fill_store(store)
    whole = set(await list_uids(store, query, JobFilter(where=Every(()))))
    for where in (Equal(Column.STATE, "QUEUED"), HasLabel("team"), Every(())):
        everywhere = await list_uids(store, ALL, JobFilter(where=where))
        inside = await list_uids(store, query, JobFilter(where=where))
        assert inside == [uid for uid in everywhere if uid in whole] or query.collection is not None
        assert set(inside) <= whole


async def find_uids(store: Store, where: Condition) -> list[int]:
    return [work.uid for work, _ in (await store.reader.matching(ALL, where)).jobs]


async def test_filtered_lists_follow_state_changes_of_a_job(store: Store) -> None:
    job = replace(make_job(1), labels=(("team", "vision"),))
    await store.intake.create(NewWork(job, (entry("created"),)))
    queued, running = Equal(Column.STATE, "QUEUED"), Equal(Column.STATE, "RUNNING")
    assert (await find_uids(store, queued), await find_uids(store, running)) == ([1], [])
    epoch = await store.ledger.acquire("controller")
    live = live_job(await store.ledger.load(JobUid(1)))
    await store.ledger.commit(epoch, step(live, JobState.RUNNING, "running"))
    assert (await find_uids(store, queued), await find_uids(store, running)) == ([], [1])
    await store.intake.replace_labels(job.name, (("team", "sound"), ("x", "")), "", T0)
    assert await find_uids(store, HasLabel("team", "vision")) == []
    assert await find_uids(store, Every((HasLabel("team", "sound"), HasLabel("x")))) == [1]
    live = live_job(await store.ledger.load(JobUid(1)))
    await store.ledger.commit(epoch, step(live, JobState.CANCELLED, "ended"))
    await store.intake.delete_job(job.name, operation(1))
    assert await find_uids(store, Either((HasLabel("x"), Equal(Column.STATE, "CANCELLED")))) == []


async def test_each_step_of_a_filtered_list_checks_a_limited_number_of_records(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/invariants#finished-jobs."""
    await fill_store(store)
    monkeypatch.setattr(narrowing, "MAX_STEPS", 1)
    monkeypatch.setattr(narrowing, "MAX_CHECKED_WORKS", 20)
    after, steps = 0, 0
    while True:
        page = await store.reader.matching(replace(ALL, after=after), Contains("nobody's"))
        steps += 1
        assert page.jobs == ()
        if page.next_after is None:
            break
        after = page.next_after
    assert steps == (COUNT + 2) // 20 + 1
