"""Jobs created by programs of jobs, through the real controller and store: their limits and their ends."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.sim.scripted_world import PRIMARY, World, numbered_job, world
from tests.sim.tuning_jobs import tuning
from tests.sim.tuning_scenarios import with_custom_job
from tests.waiting import until
from trainshed.core.errors import FailedPrecondition, ResourceExhausted
from trainshed.core.lifecycle.records import OUTLIVES_LABEL, ActingJob, Actor, Job
from trainshed.core.lifecycle.states import AttemptState, JobState
from trainshed.core.names import JobUid
from trainshed.store.port import Commit, NewWork
from trainshed.store.records import Operation, OperationKind

OUTLIVES = ((OUTLIVES_LABEL, "on"),)


def job_actor(made_by: Job, root: int = 1) -> Actor:
    return Actor("trainer@demo", ActingJob(made_by.uid, made_by.name, JobUid(root)))


def child(number: int, made_by: Job, root: int = 1, labels: tuple[tuple[str, str], ...] = ()) -> Job:
    return replace(numbered_job(number, 1), creator=job_actor(made_by, root), labels=labels)


async def test_job_creation_by_a_job_is_limited(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        parent = numbered_job(1, 1)
        await w.create(parent)
        creations = (w.create(child(number, parent)) for number in range(2, 62))
        answers = await asyncio.gather(*creations, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert len(refused) == 40
        assert {type(error) for error in refused} == {ResourceExhausted}
        assert "max_child_jobs" in str(refused[0])
        assert len(await w.store.ledger.load_live()) == 21
        # Jobs of another job have a separate count.
        await w.create(other := numbered_job(100, 1))
        await w.create(child(101, other, 100))
        # Another job is allowed as soon as one has finished.
        await w.state(JobUid(2), JobState.RUNNING)
        w.engine.exit(JobUid(2), 1, PRIMARY, 0)
        await w.state(JobUid(2), JobState.SUCCEEDED)
        await w.create(child(62, parent))


async def test_grandchild_jobs_count_toward_the_limit_after_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        last = numbered_job(1, 1)
        await w.create(last)
        for number in range(2, 22):
            last = child(number, last)
            await w.create(last)
        for _ in range(2):
            with pytest.raises(ResourceExhausted):
                await w.create(child(30, last))
            with pytest.raises(ResourceExhausted):
                await w.create(child(31, numbered_job(1, 1)))
            await w.crash()


async def test_end_of_a_job_cancels_its_descendants(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        parent = numbered_job(1, 1)
        await w.create(parent)
        await w.create(first := child(2, parent))
        await w.create(child(3, first))
        await w.create(child(4, parent, labels=OUTLIVES))
        await w.create(kept := child(5, parent))
        searching = replace(tuning(trials=3, parallel=2), creator=job_actor(parent))
        await w.controller.create(NewWork(searching))
        pipeline, backing = with_custom_job()
        await w.controller.create(
            *(NewWork(replace(work, creator=job_actor(parent))) for work in (pipeline, backing))
        )
        for number in (1, 2, 3, 4, 5):
            await w.state(JobUid(number), JobState.RUNNING)
        await w.store.intake.replace_labels(kept.name, OUTLIVES, "", w.time)
        w.engine.exit(parent.uid, 1, PRIMARY, 0)
        await w.state(parent.uid, JobState.SUCCEEDED)
        for uid, made_by in ((2, parent), (3, first)):
            over = await w.state(JobUid(uid), JobState.CANCELLED)
            assert over.error is not None
            assert f"because the job {made_by.name}" in over.error.message
            assert OUTLIVES_LABEL in over.error.message
        for uid in (searching.uid, pipeline.uid, backing.uid):
            await wait_for_cancel(w, uid)
        for uid in (4, 5):
            spared, _ = await w.store.reader.job_by_uid(JobUid(uid))
            assert spared.state is JobState.RUNNING
        entries = await w.store.reader.timeline(JobUid(2))
        (cancel,) = [entry for entry in entries if entry.kind == "cancel_requested"]
        assert cancel.details == {"principal": "trainer@demo", "job": str(parent.name)}


@pytest.mark.parametrize("deleted", [False, True])
async def test_restarted_service_cancels_child_jobs_of_a_finished_job(deleted: bool, tmp_path: Path) -> None:
    """The end of a job is committed, and its child jobs are not yet cancelled."""
    async with world(tmp_path) as w:
        parent = numbered_job(1, 1)
        await w.create(parent)
        await w.create(child(2, parent))
        await w.create(child(3, parent, labels=OUTLIVES))
        searching = replace(tuning(trials=3, parallel=2), creator=job_actor(parent))
        await w.controller.create(NewWork(searching))
        for number in (1, 2, 3):
            await w.state(JobUid(number), JobState.RUNNING)
        await store_end(w, parent.uid)
        if deleted:
            gone = Operation("projects/demo/operations/1", OperationKind.DELETE, "", 1, 1)
            await w.store.intake.delete_job(parent.name, gone)
        await w.crash()
        await w.state(JobUid(2), JobState.CANCELLED)
        await wait_for_cancel(w, searching.uid)
        spared, _ = await w.store.reader.job_by_uid(JobUid(3))
        assert spared.state is JobState.RUNNING


async def test_cancelled_job_cannot_create_more_jobs_before_its_end(tmp_path: Path) -> None:
    """Otherwise a job that resubmits itself on each cancel could not be ended."""
    async with world(tmp_path) as w:
        w.engine.ignore_stop = True
        parent = numbered_job(1, 1)
        await w.create(parent)
        await w.state(parent.uid, JobState.RUNNING)
        await w.cancel(parent)
        # It is stored before the controller applies it and stops running programs.
        await until(lambda: w.engine.stopped)
        with pytest.raises(FailedPrecondition):
            await w.create(child(2, parent, labels=OUTLIVES))
        w.engine.exit(parent.uid, 1, PRIMARY, signal=9, stopped=True)
        await w.state(parent.uid, JobState.CANCELLED)
        with pytest.raises(FailedPrecondition):
            await w.create(child(2, parent, labels=OUTLIVES))


async def wait_for_cancel(w: World, uid: JobUid) -> None:
    """Wait until a work of any kind is cancelled."""
    async with asyncio.timeout(60):
        while True:
            seen = w.notices.count(uid)
            work, _ = await w.store.reader.job_by_uid(uid)
            if work.state.is_final:
                assert work.state is JobState.CANCELLED
                return
            await w.notices.wait_beyond(uid, seen, 10)


async def store_end(w: World, uid: JobUid) -> None:
    """End a job in the store only, like a service that is killed right afterwards."""
    live = await w.store.ledger.load(uid)
    assert live is not None and isinstance(live.job, Job)
    over = replace(live.job, state=JobState.SUCCEEDED, phase=AttemptState.OVER, ended=w.time, replicas=())
    epoch = await w.store.ledger.acquire("killed soon")
    await w.store.ledger.commit(epoch, Commit(over, live.generation))
