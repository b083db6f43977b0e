"""spec/lifecycle#dependencies: jobs that wait for other jobs, through the real controller and store."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.sim.scripted_world import PRIMARY, World, numbered_job, world
from tests.sim.test_jobs_of_jobs import store_end, wait_for_cancel
from tests.sim.tuning_jobs import tuning
from tests.sim.tuning_scenarios import with_custom_job
from tests.waiting import until_found
from trainshed.controller.dependencies import Dependents
from trainshed.core.capacity import QuotaKey
from trainshed.core.catalog.quotas import GLOBAL, QUEUED
from trainshed.core.dependencies import Condition, Dependency
from trainshed.core.errors import ResourceExhausted
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, DependencyEnded, Event
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.works import Work
from trainshed.store.port import Commit, NewWork
from trainshed.store.records import Operation, OperationKind


def dependency(on: Work, condition: Condition = Condition.SUCCEEDED) -> Dependency:
    return Dependency(on.uid, on.name, condition)


def after(number: int, *jobs: Work, condition: Condition = Condition.SUCCEEDED) -> Job:
    dependencies = tuple(dependency(job, condition) for job in jobs)
    return replace(numbered_job(number, 1), dependencies=dependencies)


async def running(w: World, number: int) -> Job:
    await w.create(numbered_job(number, 1))
    return await w.state(JobUid(number), JobState.RUNNING)


async def stored(w: World, uid: JobUid) -> Work:
    return (await w.store.reader.job_by_uid(uid))[0]


async def are_queued(w: World, *uids: JobUid) -> None:
    for uid in uids:
        assert (await stored(w, uid)).state is JobState.QUEUED


async def ended(w: World, uid: JobUid) -> Work:
    async with asyncio.timeout(60):
        while True:
            seen = w.notices.count(uid)
            work = await stored(w, uid)
            if work.state.is_final:
                return work
            await w.notices.wait_beyond(uid, seen, 10)


async def test_job_starts_after_the_success_of_all_its_dependencies(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        first, second = await running(w, 1), await running(w, 2)
        await w.create(after(3, first, second))
        await w.create(after(4, first))
        w.engine.exit(first.uid, 1, PRIMARY, 0)
        await w.state(JobUid(4), JobState.RUNNING)
        third = await w.until(JobUid(3), lambda job: job.dependencies == (dependency(second),))
        assert third.state is JobState.QUEUED
        assert w.controller.position(JobUid(3)) == 0 and w.controller.load().waiting == 0
        w.engine.exit(second.uid, 1, PRIMARY, 0)
        started = await w.state(JobUid(3), JobState.RUNNING)
        assert started.dependencies == () and started.unblocked


@pytest.mark.parametrize("way", ["failure", "cancel"])
async def test_failure_of_a_dependency_fails_all_dependents(way: str, tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        first = await running(w, 1)
        await w.create(second := after(2, first))
        await w.create(after(3, second))
        await w.create(after(4, first, condition=Condition.FINISHED))
        if way == "failure":
            w.engine.exit(first.uid, 1, PRIMARY, 1)
        else:
            await w.cancel(first)
        for uid in (2, 3):
            failed = await ended(w, JobUid(uid))
            assert failed.state is JobState.FAILED
            assert failed.error is not None and failed.error.cause == "dependency"
        await w.state(JobUid(4), JobState.RUNNING)


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_restarted_service_continues_after_an_end_that_was_not_processed(
    is_deleted: bool, tmp_path: Path
) -> None:
    """The end of a job is committed, and the service is killed before it has processed the dependents."""
    async with world(tmp_path) as w:
        first = await running(w, 1)
        await w.create(after(2, first))
        await w.create(after(3, first, condition=Condition.FINISHED))
        await w.crash()
        await are_queued(w, JobUid(2), JobUid(3))
        await store_end(w, first.uid)
        if is_deleted:  # The service was restored from a backup in between, for example.
            gone = Operation("projects/demo/operations/1", OperationKind.DELETE, "", 1, 1)
            await w.store.intake.delete_job(first.name, gone)
        await w.crash()
        await w.state(JobUid(3), JobState.RUNNING)
        await w.state(JobUid(2), JobState.FAILED if is_deleted else JobState.RUNNING)


async def test_job_deleted_immediately_after_its_success_counts_as_successful(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as w:
        first = await running(w, 1)
        for number in range(2, 12):
            await w.create(after(number, first))
        commit = w.store.ledger.commit

        async def commit_and_delete(epoch: int, made: Commit) -> int:
            generation = await commit(epoch, made)
            work = await stored(w, first.uid) if not deleted else None
            if work is not None and work.state.is_final:
                deleted.append(work.uid)
                gone = Operation("projects/demo/operations/1", OperationKind.DELETE, "", 1, 1)
                await w.store.intake.delete_job(first.name, gone)
            return generation

        deleted: list[JobUid] = []
        monkeypatch.setattr(w.store.ledger, "commit", commit_and_delete)
        w.engine.exit(first.uid, 1, PRIMARY, 0)
        for number in range(2, 12):
            await w.state(JobUid(number), JobState.RUNNING)
        assert deleted


async def test_job_that_ends_while_its_dependent_is_stored_is_not_missed(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        first = await running(w, 1)
        w.engine.exit(first.uid, 1, PRIMARY, 0)
        creations = (w.create(after(number, first)) for number in range(2, 22))
        await asyncio.gather(w.state(first.uid, JobState.SUCCEEDED), *creations)
        await w.create(after(22, first))
        search = replace(tuning(trials=1), dependencies=(dependency(first),))
        await w.controller.create(NewWork(search))
        for number in range(2, 23):
            await w.state(JobUid(number), JobState.RUNNING)
        await until_found(lambda: w.store.reader.children(search.uid))


async def test_new_service_reports_all_unprocessed_ends_before_it_serves_clients(tmp_path: Path) -> None:
    """Clients can then delete the finished jobs."""
    async with world(tmp_path) as w:
        first, second = await running(w, 1), await running(w, 2)
        await store_end(w, first.uid)
        reported: list[tuple[JobUid, Event]] = []
        dependents = Dependents(w.store.reader, lambda uid, event: reported.append((uid, event)))
        missing = numbered_job(9, 1)
        for number, jobs in ((3, (first, second)), (4, (first,)), (5, (missing,))):
            dependents.add(after(number, *jobs))
        for _ in range(2):
            await dependents.report_earlier_ends()
            succeeded = DependencyEnded(first.uid, JobState.SUCCEEDED)
            assert reported == [
                (JobUid(3), succeeded),
                (JobUid(4), succeeded),
                (JobUid(5), DependencyEnded(missing.uid, None)),
            ]


async def test_cancelled_dependent_releases_its_place_in_the_queue_limit(tmp_path: Path) -> None:
    """spec/queue#quotas: a job that waits for another job counts as a waiting job."""
    async with world(tmp_path) as w:
        await w.store.intake.set_quota(QuotaKey("demo", GLOBAL, QUEUED), 1)
        await w.controller.capacity_changed()
        first = await running(w, 1)
        await w.create(second := after(2, first))
        for _ in range(2):
            (shown,) = (quota for quota in w.controller.quotas("demo") if quota.key.metric == QUEUED)
            assert shown.used == 1
            with pytest.raises(ResourceExhausted, match=r"^project demo has 1 waiting jobs"):
                await w.create(after(3, first))
            await w.crash()
        await w.cancel(second)
        await w.state(second.uid, JobState.CANCELLED)
        await w.create(after(4, first))


async def test_tuning_job_waits_fails_and_is_cancelled_like_a_job(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        first, second = await running(w, 1), await running(w, 2)
        searches = [
            replace(tuning(number, trials=1), dependencies=(dependency(on),))
            for number, on in ((7000, first), (7100, second), (7200, second))
        ]
        for search in searches:
            await w.controller.create(NewWork(search))
        await w.create(after(3, searches[1]))
        await are_queued(w, *(search.uid for search in searches))
        await w.crash()
        cancel = CancelRequested(CancelCause.USER, w.time)
        await w.store.intake.request_cancel(searches[2].name, cancel)
        w.controller.wake(searches[2].uid)
        await wait_for_cancel(w, searches[2].uid)
        assert [await w.store.reader.children(search.uid) for search in searches] == [()] * 3
        w.engine.exit(second.uid, 1, PRIMARY, 1)
        failed = await ended(w, searches[1].uid)
        assert failed.state is JobState.FAILED and failed.error and failed.ended
        assert (await ended(w, JobUid(3))).state is JobState.FAILED
        w.engine.exit(first.uid, 1, PRIMARY, 0)
        await until_found(lambda: w.store.reader.children(searches[0].uid))


async def test_pipeline_waits_with_its_job_and_others_wait_for_the_pipeline(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        first = await running(w, 1)
        pipeline, backing = with_custom_job(model=None)
        held = replace(backing, dependencies=(dependency(first),))
        await w.controller.create(NewWork(pipeline), NewWork(held))
        await w.create(after(2, pipeline))
        await are_queued(w, backing.uid, JobUid(2))
        w.engine.exit(first.uid, 1, PRIMARY, 0)
        await w.state(backing.uid, JobState.RUNNING)
        w.engine.exit(backing.uid, 1, PRIMARY, 0)
        await w.state(JobUid(2), JobState.RUNNING)
