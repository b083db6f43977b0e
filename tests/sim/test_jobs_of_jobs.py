"""Jobs that programs of jobs have made, through the real controller and store: how many there may be, and
when they end."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.sim.scripted_world import PRIMARY, World, numbered, world
from tests.sim.tuning_jobs import tuning
from tests.sim.tuning_making import with_custom_job
from tests.waiting import until
from trainshed.core.errors import FailedPrecondition, ResourceExhausted
from trainshed.core.lifecycle.records import OUTLIVES_LABEL, ActingJob, Actor, Job
from trainshed.core.lifecycle.states import AttemptState, JobState
from trainshed.core.names import JobUid
from trainshed.store.port import Commit, NewWork
from trainshed.store.records import Operation, OperationKind

OUTLIVES = ((OUTLIVES_LABEL, "on"),)


def maker(made_by: Job, root: int = 1) -> Actor:
    return Actor("trainer@demo", ActingJob(made_by.uid, made_by.name, JobUid(root)))


def child(
    number: int, made_by: Job, root: int = 1, labels: tuple[tuple[str, str], ...] = ()
) -> Job:
    return replace(numbered(number, 1), creator=maker(made_by, root), labels=labels)


async def test_a_job_that_makes_sixty_at_once_has_twenty(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        parent = numbered(1, 1)
        await w.create(parent)
        creations = (w.create(child(number, parent)) for number in range(2, 62))
        answers = await asyncio.gather(*creations, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert len(refused) == 40
        assert {type(error) for error in refused} == {ResourceExhausted}
        assert "max_child_jobs" in str(refused[0])
        assert len(await w.store.ledger.load_live()) == 21
        # Those of another job are counted for themselves.
        await w.create(other := numbered(100, 1))
        await w.create(child(101, other, 100))
        # As soon as one is over there may be another.
        await w.state(JobUid(2), JobState.RUNNING)
        w.engine.exit(JobUid(2), 1, PRIMARY, 0)
        await w.state(JobUid(2), JobState.SUCCEEDED)
        await w.create(child(62, parent))


async def test_what_their_jobs_make_counts_with_them_also_after_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        last = numbered(1, 1)
        await w.create(last)
        for number in range(2, 22):
            last = child(number, last)
            await w.create(last)
        for _ in range(2):
            with pytest.raises(ResourceExhausted):
                await w.create(child(30, last))
            with pytest.raises(ResourceExhausted):
                await w.create(child(31, numbered(1, 1)))
            await w.crash()


async def test_a_job_ends_with_the_one_that_made_it_and_its_own_with_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        parent = numbered(1, 1)
        await w.create(parent)
        await w.create(first := child(2, parent))
        await w.create(child(3, first))
        await w.create(child(4, parent, labels=OUTLIVES))
        await w.create(kept := child(5, parent))
        searching = replace(tuning(trials=3, parallel=2), creator=maker(parent))
        await w.controller.create(NewWork(searching))
        pipeline, backing = with_custom_job()
        await w.controller.create(
            *(NewWork(replace(work, creator=maker(parent))) for work in (pipeline, backing))
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
            await ended(w, uid)
        for uid in (4, 5):
            spared, _ = await w.store.reader.job_by_uid(JobUid(uid))
            assert spared.state is JobState.RUNNING
        entries = await w.store.reader.timeline(JobUid(2))
        (cancel,) = [entry for entry in entries if entry.kind == "cancel_requested"]
        assert cancel.details == {"principal": "trainer@demo", "job": str(parent.name)}


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_service_that_is_killed_as_a_job_ends_ends_its_jobs_later(
    deleted: bool, tmp_path: Path
) -> None:
    """Between the commit that ends a job and the look at what it has made, nothing is stored of that."""
    async with world(tmp_path) as w:
        parent = numbered(1, 1)
        await w.create(parent)
        await w.create(child(2, parent))
        await w.create(child(3, parent, labels=OUTLIVES))
        searching = replace(tuning(trials=3, parallel=2), creator=maker(parent))
        await w.controller.create(NewWork(searching))
        for number in (1, 2, 3):
            await w.state(JobUid(number), JobState.RUNNING)
        await store_end(w, parent.uid)
        if deleted:
            gone = Operation("projects/demo/operations/1", OperationKind.DELETE, "", 1, 1)
            await w.store.intake.delete_job(parent.name, gone)
        await w.crash()
        await w.state(JobUid(2), JobState.CANCELLED)
        await ended(w, searching.uid)
        spared, _ = await w.store.reader.job_by_uid(JobUid(3))
        assert spared.state is JobState.RUNNING


async def test_a_job_that_is_about_to_end_makes_no_more(tmp_path: Path) -> None:
    """Else what makes itself anew whenever it is cancelled could not be ended."""
    async with world(tmp_path) as w:
        w.engine.ignore_stop = True
        parent = numbered(1, 1)
        await w.create(parent)
        await w.state(parent.uid, JobState.RUNNING)
        await w.cancel(parent)
        # It is stored before the controller goes by it, and stops what runs.
        await until(lambda: w.engine.stopped)
        with pytest.raises(FailedPrecondition):
            await w.create(child(2, parent, labels=OUTLIVES))
        w.engine.exit(parent.uid, 1, PRIMARY, signal=9, stopped=True)
        await w.state(parent.uid, JobState.CANCELLED)
        with pytest.raises(FailedPrecondition):
            await w.create(child(2, parent, labels=OUTLIVES))


async def ended(w: World, uid: JobUid) -> None:
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
    """End a job in the store alone, as a service does that is killed right afterwards."""
    live = await w.store.ledger.load(uid)
    assert live is not None and isinstance(live.job, Job)
    over = replace(
        live.job, state=JobState.SUCCEEDED, phase=AttemptState.OVER, ended=w.time, replicas=()
    )
    epoch = await w.store.ledger.acquire("killed soon")
    await w.store.ledger.commit(epoch, Commit(over, live.generation))
