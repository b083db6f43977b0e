"""Restarts and retries through the controller, the real store and a scripted engine (spec/failures)."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from tests.sim.scripted_world import PRIMARY, WORKER, World, numbered_job, world
from tests.unit.jobs import job
from trainshed.controller import steps
from trainshed.controller.leftovers import settle_leftovers
from trainshed.core.job import Scheduling
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.events import Event
from trainshed.core.lifecycle.machine import step
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.lifecycle.transition import FailurePolicy, Step
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import EngineUnavailable, LaunchRejected, ReplicaReport
from trainshed.store.port import Commit


def replica(stored: Job, which: ReplicaId) -> tuple[ReplicaState, int, str | None]:
    state = next(r for r in stored.replicas if r.id == which)
    return state.state, state.incarnation, state.node


async def up(w: World, uid: JobUid, which: ReplicaId, incarnation: int) -> Job:
    return await w.until(
        uid,
        lambda stored: (
            bool(stored.replicas) and replica(stored, which)[:2] == (ReplicaState.RUNNING, incarnation)
        ),
    )


async def kinds(w: World, uid: JobUid) -> list[str]:
    return [entry.kind for entry in await w.store.reader.timeline(uid)]


async def test_cancel_does_not_wait_for_a_repeatedly_rejected_start(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.engine.unavailable = 10**6
        subject = job(1)
        uid = await w.create(subject)
        await w.until(uid, lambda stored: stored.attempt == 1)
        await w.cancel(subject)
        await w.state(uid, JobState.CANCELLED)
        assert w.engine.launches == []


async def test_event_that_causes_an_internal_error_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/failures#service-failures: the service itself failed, code 13. No process runs when the end is
    published.
    """

    def broken(subject: Job, event: Event, now: int, policy: FailurePolicy) -> Step[Job]:
        if type(event).__name__ == "ReplicaExited":
            raise RuntimeError("planted")
        return step(subject, event, now, policy)

    monkeypatch.setattr(steps, "step", broken)
    async with world(tmp_path) as w:
        uid = await w.create(job(1, 1))
        await w.state(uid, JobState.RUNNING)
        w.engine.exit(uid, 1, WORKER, 1)
        failed = await w.state(uid, JobState.FAILED)
        assert failed.error is not None and failed.error.code == 13
        assert not w.engine.alive
        assert "service_failed" in await kinds(w, uid)


async def test_job_does_not_start_if_a_job_of_higher_priority_takes_its_tentative_capacity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/queue#order: a job is admitted while its own commit is active. When it is stored, a job of higher
    priority has arrived and gets the capacity instead. Only one of them is admitted.
    """
    async with world(tmp_path, limit=1) as w:
        gate = asyncio.Event()
        commit = w.store.ledger.commit

        async def slow(epoch: int, step: Commit) -> int:
            if step.job.uid == 8:
                await gate.wait()
            return await commit(epoch, step)

        monkeypatch.setattr(w.store.ledger, "commit", slow)
        first = await w.create(job(1))
        await w.state(first, JobState.RUNNING)
        slower = await w.create(numbered_job(8, 1))
        w.engine.exit(first, 1, PRIMARY, 0)
        await w.state(first, JobState.SUCCEEDED)
        urgent = await w.create(numbered_job(9, 1, scheduling=Scheduling(priority=5)))
        async with asyncio.timeout(60):
            while "waiting" not in await kinds(w, urgent):
                await w.notices.wait_beyond(urgent, w.notices.count(urgent), 0.1)
        gate.set()
        await w.state(urgent, JobState.RUNNING)
        waits, _ = await w.store.reader.job_by_uid(slower)
        assert isinstance(waits, Job) and (waits.state, waits.attempt) == (JobState.QUEUED, 0)
        assert list(w.engine.alive) == [(urgent, 1, PRIMARY)]
        w.engine.exit(urgent, 1, PRIMARY, 0)
        await w.state(slower, JobState.RUNNING)


async def test_start_failure_that_is_reported_late_does_not_affect_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/failures#budgets: counters are separate per cause. A stale report of an earlier attempt costs no
    retry.
    """
    async with world(tmp_path) as w:
        launch = w.engine.launch

        async def launch_and_reject(plans: Sequence[LaunchPlan]) -> None:
            monkeypatch.undo()
            await launch(plans)
            w.engine.exit(plans[0].job_uid, 1, PRIMARY, 139)
            await w.until(plans[0].job_uid, lambda stored: stored.attempt == 2)
            raise LaunchRejected("too late")

        monkeypatch.setattr(w.engine, "launch", launch_and_reject)
        uid = await w.create(job(1))
        again = await w.until(uid, lambda stored: stored.attempt == 2 and stored.state is JobState.RUNNING)
        assert again.retries == (("transient_exit", 1),)


async def test_gang_is_launched_once_for_any_order_of_replica_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start must not have quadratic cost in the size of the gang: each plan lists all peers."""
    async with world(tmp_path) as w:
        launch, handed, late = w.engine.launch, list[int](), list[ReplicaReport]()

        async def slow(plans: Sequence[LaunchPlan]) -> None:
            handed.append(len(plans))
            await launch(plans)
            for _ in range(2):
                started = w.engine.events.get_nowait()
                assert isinstance(started, ReplicaReport)
                late.append(started)

        monkeypatch.setattr(w.engine, "launch", slow)
        uid = await w.create(job(1, 3))
        await up(w, uid, ReplicaId(1, 2), 1)
        for event in late:
            w.engine.events.put_nowait(event)
            await up(w, uid, event.event.replica, 1)
        await w.state(uid, JobState.RUNNING)
        assert handed == [4]


async def test_leftover_slots_on_a_silent_node_do_not_block_releases_on_other_nodes() -> None:
    given_back = asyncio.Event()

    async def stop(uid: JobUid, attempt: int, grace: int, notice: object = None) -> None:
        if uid == 1:
            raise EngineUnavailable("the agent on node n1 is not connected now")

    async def release(uid: JobUid, attempt: int) -> None:
        given_back.set()

    left = AsyncMock(return_value=[(1, 1), (2, 1)])
    engine = AsyncMock(allocations=left, stop=stop, release=release)
    settling = asyncio.create_task(settle_leftovers(engine, Mock(return_value=None), (), Mock()))
    await asyncio.wait_for(given_back.wait(), 60)
    settling.cancel()


async def test_partially_launched_gang_is_launched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as w:
        launch = w.engine.launch

        async def halting(plans: Sequence[LaunchPlan]) -> None:
            monkeypatch.undo()
            await launch(plans[:1])
            raise EngineUnavailable("planted")

        monkeypatch.setattr(w.engine, "launch", halting)
        uid = await w.create(job(1, 3))
        await w.state(uid, JobState.RUNNING)
