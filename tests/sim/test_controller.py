"""The controller over the real store and a scripted engine: life cycles, faults, restarts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.sim.parents import CountingAdvisor
from tests.sim.scripted_world import PRIMARY, World, numbered_job, world
from tests.sim.tuning_jobs import tuning
from tests.unit.jobs import exit_record, job
from tests.waiting import until
from trainshed.controller import carrier, controller
from trainshed.controller.capacity import CapacityTracker
from trainshed.core.capacity import EACH, QuotaKey
from trainshed.core.catalog.quotas import GLOBAL, PRIORITY, QUEUED
from trainshed.core.datasets.plans import SplitPlan, SplitRule
from trainshed.core.datasets.records import DataFiles, DatasetKind, DatasetName
from trainshed.core.errors import AlreadyExists, FailedPrecondition, ResourceExhausted
from trainshed.core.job import Scheduling
from trainshed.core.lifecycle.records import Actor, Job
from trainshed.core.lifecycle.replica_events import ReplicaExited
from trainshed.core.lifecycle.states import AttemptState, JobState
from trainshed.core.names import JobUid, ReplicaId
from trainshed.datasets.port import DataRefused
from trainshed.engines.port import LaunchRejected, ReplicaReport, SlotRequest
from trainshed.runtimes.port import PackageFailed
from trainshed.store.port import Commit, NewWork


async def test_job_with_free_capacity_is_stored_and_placed_in_one_commit(tmp_path: Path) -> None:
    async with world(tmp_path, warm=False, limit=1) as w:
        w.runtimes.gate.clear()
        first, second = [await w.create(numbered_job(number, 1)) for number in (1, 2)]
        placed, waits = await w.store.ledger.load(first), await w.store.ledger.load(second)
        assert placed is not None and waits is not None
        assert (placed.job.state, placed.generation) == (JobState.PREPARING, 1)
        assert waits.job.state is JobState.QUEUED
        kinds = [entry.kind for entry in await w.store.reader.timeline(first)]
        assert kinds == ["admitted", "preparing"]
        w.runtimes.gate.set()
        await w.state(first, JobState.RUNNING)
        w.engine.exit(first, 1, PRIMARY, 0)
        await w.state(second, JobState.RUNNING)


async def test_job_with_a_duplicate_name_releases_its_capacity(tmp_path: Path) -> None:
    async with world(tmp_path, limit=2) as w:
        await w.create(first := numbered_job(1, 1))
        with pytest.raises(AlreadyExists):
            await w.create(replace(numbered_job(2, 1), name=first.name))
        assert {job.uid for job in w.controller.running_jobs()} == {1}
        await w.create(numbered_job(3, 1))
        await w.state(JobUid(3), JobState.RUNNING)
    assert {key[0] for key in w.engine.launches} == {1, 3}


async def test_queue_limit_and_priority_limit_are_enforced(tmp_path: Path) -> None:
    """spec/queue#quotas: limits on waiting jobs and on the priority of a user's jobs."""
    limits = {(QUEUED, EACH): 2, (QUEUED, ""): 3, (PRIORITY, "bo@x.example"): 5}

    def of(number: int, person: str, priority: int = 0) -> Job:
        made = replace(numbered_job(number, 1), creator=Actor(f"{person}@x.example"))
        return replace(made, spec=replace(made.spec, scheduling=Scheduling(priority=priority)))

    async with world(tmp_path, limit=1) as w:
        for (metric, person), limit in limits.items():
            await w.store.intake.set_quota(QuotaKey("demo", GLOBAL, metric, person), limit)
        await w.controller.capacity_changed()
        burst = (w.create(of(number, "ana", number)) for number in range(1, 7))
        answers = await asyncio.gather(*burst, return_exceptions=True)
        assert answers[:3] == [1, 2, 3], "one job runs, and two wait"
        assert [str(answer) for answer in answers[3:]] == 3 * [
            "ana@x.example has 2 waiting jobs; at most 2 are allowed. Submit the job when another one "
            "has started; an owner can raise the limit: trainshed quotas set queued_jobs 3 "
            "--project demo --user ana@x.example"
        ]
        with pytest.raises(FailedPrecondition, match=r"at most 5, not 6; an owner .* 6 --project"):
            await w.create(of(7, "bo", 6))
        await w.create(of(8, "bo", 5))
        with pytest.raises(ResourceExhausted, match=r"^project demo has 3 waiting jobs"):
            await w.controller.preflight(of(9, "cy"))
        shown = [quota for quota in w.controller.quotas("demo") if quota.key.metric == QUEUED]
        assert {quota.key.person: quota.used for quota in shown} == {"": 3, EACH: 0}


async def test_tuning_job_without_trials_counts_toward_the_queue_limit_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/queue#quotas: limits of a user survive restarts."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(CountingAdvisor, "suggest", never)
    ana = Actor("ana@x.example")
    async with world(tmp_path) as w:
        await w.store.intake.set_quota(QuotaKey("demo", GLOBAL, QUEUED, EACH), 1)
        await w.controller.capacity_changed()
        burst = (w.controller.create(NewWork(replace(tuning(n), creator=ana))) for n in (7000, 7001))
        assert len([a for a in await asyncio.gather(*burst, return_exceptions=True) if a]) == 1
        for _ in range(2):
            with pytest.raises(ResourceExhausted, match=r"^ana@x.example has 1 waiting jobs"):
                await w.create(replace(job(1), creator=ana))
            await w.crash()


def reading(number: int) -> Job:
    """A job whose programs read a dataset."""
    subject = job(number)
    name, files = DatasetName("p", "us-central1", "7"), (DataFiles(("gs://b/a.csv",)),)
    plan = SplitPlan(name, DatasetKind.TABULAR, files, SplitRule(), "gs://b/out/dataset-7")
    return replace(subject, spec=replace(subject.spec, data=plan))


async def test_job_starts_after_its_dataset_is_split(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.datasets.gate.clear()
        uid = await w.create(reading(1))
        await w.state(uid, JobState.PREPARING)
        assert w.engine.launches == []
        w.datasets.gate.set()
        await w.state(uid, JobState.RUNNING)
        messages = [entry.message for entry in await w.store.reader.timeline(uid)]
        assert any("the splits of the dataset 7" in message for message in messages)
        lines = [line.text for line in (await w.logs.page(uid)).lines]
        assert any("8 training rows in 1 file" in line for line in lines)
        (account,) = w.datasets.asked
        assert (account.project, account.job_uid) == (job(1).name.project_id, str(uid))


async def test_error_of_a_failed_dataset_split_names_the_invalid_row_of_the_dataset(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.datasets.failure = DataRefused("gs://b/a.csv, row 3 (line 3): it has 1 field")
        failed = await w.state(await w.create(reading(1)), JobState.FAILED)
        assert failed.error is not None
        # The message contains no replica, because none has run.
        assert failed.error.message == "gs://b/a.csv, row 3 (line 3): it has 1 field"
        assert (failed.outcome and failed.outcome.rule) == "data_failed"
        assert failed.attempt == 1
        assert w.engine.launches == []


async def test_rejected_launch_fails_the_job_immediately(tmp_path: Path) -> None:
    """spec/failures#service-failures: the job fails immediately. It must not stay PREPARING, where no time
    limit applies."""
    async with world(tmp_path) as w:
        w.engine.always["launch"] = LaunchRejected("there is no such node")
        uid = await w.create(job(1))
        failed = await w.state(uid, JobState.FAILED)
        assert failed.error is not None and (failed.error.code, failed.attempt) == (9, 1)
        assert "there is no such node" in failed.error.message
        async with asyncio.timeout(60):
            while await w.engine.released.get() != (uid, 1):
                pass


async def test_package_missing_after_a_service_restart_fails_the_job(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.engine.unavailable = 10**6
        uid = await w.create(job(1))
        await w.until(uid, lambda stored: stored.phase is AttemptState.STARTING)
        w.runtimes.warm, w.runtimes.failure = False, PackageFailed("no such object gs://b/x")
        await w.crash()
        w.engine.unavailable = 0
        failed = await w.state(uid, JobState.FAILED)
        assert failed.error is not None and "no such object gs://b/x" in failed.error.message


@pytest.mark.parametrize("method", ["stop", "release"])
async def test_end_of_a_job_is_retried_after_any_error_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(carrier, "RETRY_INTERVAL", 0.01)
    async with world(tmp_path) as w:
        subject = job(1)
        uid = await w.create(subject)
        await w.state(uid, JobState.RUNNING)
        w.engine.faults[method] = RuntimeError("scripted")
        await w.cancel(subject)
        await w.state(uid, JobState.CANCELLED)
        async with asyncio.timeout(60):
            assert await w.engine.released.get() == (uid, 1)


async def run_finished_job(w: World) -> JobUid:
    """A job that has succeeded and released its slots."""
    uid = await w.create(job(1))
    await w.state(uid, JobState.RUNNING)
    w.engine.exit(uid, 1, PRIMARY, 0)
    await w.state(uid, JobState.SUCCEEDED)
    assert await w.engine.released.get() == (uid, 1)
    return uid


async def test_job_start_survives_the_end_of_a_leftover_replica(tmp_path: Path) -> None:
    """The end of a leftover replica is reported and its slots are released while the start
    would stop them.
    """
    async with world(tmp_path) as w:
        uid = await run_finished_job(w)
        await w.engine.allocate(uid, 1, (SlotRequest(PRIMARY, "host", "node-0"),))
        w.engine.ended[uid, 1, PRIMARY] = (1, exit_record(0))
        await w.crash()
        assert await w.engine.released.get() == (uid, 1)


async def test_repeated_end_report_of_a_replica_causes_no_additional_commit(tmp_path: Path) -> None:
    """A stopped replica that has already ended reports its end again. The next attempt starts with the commit
    of the last other end.
    """
    async with world(tmp_path) as w:
        w.engine.ignore_stop = True
        uid = await w.create(job(1, 2))
        await w.state(uid, JobState.RUNNING)
        w.engine.exit(uid, 1, PRIMARY, 139)
        # Ends that arrive before the controller has applied its commit share one commit.
        await until(lambda: w.engine.stopped)
        before = await w.store.ledger.load(uid)
        for which in (PRIMARY, ReplicaId(1, 0), ReplicaId(1, 1)):
            if which is PRIMARY:
                incarnation, record = w.engine.ended[uid, 1, which]
                again = ReplicaExited(1, which, incarnation, record)
                w.engine.events.put_nowait(ReplicaReport(uid, again))
            else:
                w.engine.exit(uid, 1, which, signal=15, stopped=True)
            for _ in range(20):
                await asyncio.sleep(0)
        await w.until(uid, lambda stored: stored.attempt == 2 and stored.state is JobState.RUNNING)
        after = await w.store.ledger.load(uid)
        assert before is not None and after is not None
        # The two ends, and the starts.
        assert after.generation == before.generation + 3


async def test_event_loop_stays_responsive_while_jobs_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that starts with a hundred thousand queued jobs still handles signals and shims."""
    turns, seen = 0, list[int]()
    put = CapacityTracker.put

    def count_and_put(tracker: CapacityTracker, taken: Job) -> None:
        seen.append(turns)
        put(tracker, taken)

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    w = World(tmp_path)
    for number in range(1, 4):
        await w.store.intake.create(NewWork(numbered_job(number)))
    monkeypatch.setattr(controller, "_BLOCK_SIZE", 1)
    monkeypatch.setattr(CapacityTracker, "put", count_and_put)
    turning = asyncio.create_task(turn())
    await w.controller.start()
    turning.cancel()
    assert seen[0] < seen[1] < seen[2]
    await w.controller.close()
    w.store.close()


async def test_job_runs_although_its_caller_disconnected(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        asking = asyncio.create_task(w.create(job(1)))
        await asyncio.sleep(0)
        asking.cancel()
        uid = job(1).uid
        async with asyncio.timeout(60):
            while w.notices.count(uid) == 0:
                await w.notices.wait_beyond(uid, 0, 10)
        await w.state(uid, JobState.RUNNING)


async def test_slots_of_a_job_that_ends_during_shutdown_are_released(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The last commit of the job is already stored, and the controller receives it while it closes."""
    async with world(tmp_path) as w:
        uid, commit = await w.create(job(1)), w.store.ledger.commit
        closing = asyncio.get_running_loop().create_future()

        async def slowly(epoch: int, change: Commit) -> int:
            generation = await commit(epoch, change)
            if change.job.state.is_final:
                closing.set_result(asyncio.create_task(w.controller.close()))
                await asyncio.wait([closing.result()], timeout=0)
            return generation

        await w.state(uid, JobState.RUNNING)
        monkeypatch.setattr(w.store.ledger, "commit", slowly)
        w.engine.exit(uid, 1, PRIMARY, 0)
        await (await closing)
        assert (w.controller.running_jobs(), w.engine.released.get_nowait()) == ((), (uid, 1))
