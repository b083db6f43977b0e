"""The contract of every store for tuning jobs, pipelines and their child jobs
(`trainshed.store.port`, spec/tuning)."""

import pytest
from msgspec.structs import replace

from tests.contract.store.store_samples import cancel, entry, make_job, operation
from tests.contract.store.study_samples import (
    child,
    finished_operation,
    make_pipeline,
    make_study,
    make_trial,
    make_tuning,
    make_version,
    measurement,
    register_model,
)
from trainshed.core.errors import AlreadyExists, FailedPrecondition, Unavailable
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.pipelines import ModelVersion
from trainshed.core.study.records import StudyUid
from trainshed.core.tuning.records import RunningTrial
from trainshed.core.works import Work
from trainshed.store.port import ORPHANS, Commit, JobQuery, LiveJob, NewWork, StaleCommit
from trainshed.store.sqlite.database import Store


async def create_works(store: Store, *works: Work) -> None:
    for work in works:
        await store.intake.create(NewWork(work, (entry("created"),)))


async def load_job(store: Store, uid: int) -> LiveJob[Work]:
    live = await store.ledger.load(JobUid(uid))
    assert live
    return live


async def uids(store: Store, query: JobQuery) -> list[int]:
    return [job.uid for job, _ in await store.reader.jobs(query)]


async def test_several_jobs_are_created_together_or_not_at_all(store: Store) -> None:
    pipeline = make_pipeline(1)
    both = [NewWork(pipeline, (entry("created"),)), NewWork(child(pipeline, 2))]
    await store.intake.create(*both)
    assert await store.reader.timeline(JobUid(1)) == (entry("created"),)
    assert [work.uid for work in await store.reader.children(JobUid(1))] == [2]
    for error, taken in ((AlreadyExists, make_job(4, "job2")), (Unavailable, make_job(2, "new"))):
        with pytest.raises(error):
            await store.intake.create(NewWork(make_job(3), (entry("x"),)), NewWork(taken))
        assert await uids(store, JobQuery("p", None, None)) == [1]
        assert await store.reader.timeline(JobUid(3)) == ()
    # The names are available: nothing was reserved.
    await create_works(store, make_job(3))


async def commit_step(store: Store, commit: Commit) -> int:
    return await store.ledger.commit(await store.ledger.acquire("test"), commit)


@pytest.mark.parametrize(
    ("made", "model"),
    [
        pytest.param(NewWork(make_job(9, "taken")), None, id="name"),
        pytest.param(NewWork(make_job(8, "free")), None, id="uid"),
        pytest.param(NewWork(make_job(9)), make_version("m", 1, "default"), id="version"),
        pytest.param(NewWork(make_job(9)), make_version("n", 2, "default"), id="no model"),
    ],
)
async def test_commit_with_an_existing_name_or_uid_stores_nothing(
    store: Store, made: NewWork, model: ModelVersion | None
) -> None:
    """spec/invariants#guarded-writes: nothing of a stale commit is stored."""
    tuning = make_tuning(1)
    there = make_version("m", 1, "default", "first")
    await create_works(store, tuning, make_job(8, "taken"))
    await register_model(store, there, finished_operation(1))
    await store.intake.request_cancel(tuning.name, cancel())
    live = await load_job(store, 1)
    good = NewWork(make_job(7, "good"), (entry("created"),))
    commit = Commit(
        replace(tuning, next_trial=9),
        1,
        (entry("went on"),),
        live.intents[0].seq,
        (make_trial(1, 1),),
        ((1, measurement(1, 1.0)),),
        (good, made),
        model,
    )
    with pytest.raises(StaleCommit):
        await commit_step(store, commit)
    assert await load_job(store, 1) == live
    assert await store.reader.timeline(JobUid(1)) == (entry("created"),)
    assert await store.studies.history([tuning.study]) == ()
    assert await store.studies.measurements(tuning.study) == {}
    assert await store.models.version(there.name, "") == there
    assert await uids(store, JobQuery("p", None, None)) == [8, 1]
    assert await store.reader.timeline(JobUid(7)) == ()
    whole = replace(commit, made=(good,), model=make_version("m", 2, "default"))
    assert await commit_step(store, whole) == 2
    assert (await store.models.version(there.name, "")).version == 2


async def test_deleting_a_tuning_job_deletes_its_trials(store: Store) -> None:
    tuning, other = make_tuning(1), make_tuning(2)
    await create_works(store, tuning, other)
    for job in (tuning, other):
        over = replace(job, state=JobState.SUCCEEDED)
        trials = (make_trial(job.uid, 1), make_trial(job.uid, 2))
        made = (NewWork(child(job, job.uid + 10, 1)),)
        await commit_step(store, Commit(over, 1, (), 0, trials, ((1, measurement(1, 1.0)),), made=made))
    # A client's study may have the uid of a trial's job, but never the uid of a tuning job.
    await store.studies.create(make_study(3))
    await store.studies.create_trial(make_trial(3), [measurement(1, 1.0)])
    await store.intake.delete_job(tuning.name, operation(1))
    assert await store.studies.history([tuning.study, other.study]) == (make_trial(2, 1), make_trial(2, 2))
    assert await store.studies.measurements(tuning.study) == {}
    assert len(await store.studies.measurements(other.study)) == 1
    assert len(await store.studies.history([StudyUid(3)])) == 1
    # The child jobs are independent of their deleted parent.
    assert [work.uid for work in await store.reader.children(ORPHANS)] == [11]


async def test_child_job_cannot_be_deleted_before_its_parent_has_handled_its_end(store: Store) -> None:
    """spec/tuning#trials: a trial would have no result if its job were deleted at the moment of its
    success."""
    tuning, pipeline = make_tuning(1), make_pipeline(2)
    trial, step = child(tuning, 11, 1), child(pipeline, 12, 0)
    waiting = replace(tuning, running=(RunningTrial(1, trial.uid),))
    await create_works(
        store, waiting, pipeline, *(replace(work, state=JobState.CANCELLED) for work in (trial, step))
    )
    for work in (trial, step):
        with pytest.raises(FailedPrecondition, match="has not yet processed"):
            await store.intake.delete_job(work.name, operation(1))
    await commit_step(store, Commit(replace(waiting, running=()), 1))
    await store.intake.delete_job(trial.name, operation(1))
    await commit_step(store, Commit(replace(pipeline, state=JobState.SUCCEEDED), 1))
    await store.intake.delete_job(step.name, operation(2))
