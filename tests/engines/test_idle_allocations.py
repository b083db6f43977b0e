"""An attempt's allocation is reused by the next one with the same needs. No agent is started."""

import asyncio
import threading
from pathlib import Path

import pytest

from tests.engines.conformance.lab import Program
from tests.engines.conformance.stage import PRIMARY, SECOND_REPLICA, Stage, run_with_stage
from tests.engines.remote_lab import RemoteLab
from tests.isolation import needs_mounts
from tests.ports import free_port
from trainshed.core.names import JobUid
from trainshed_cluster.remote import idle_allocations, messages, slots
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.attempts import Records
from trainshed_cluster.remote.cluster import AllocationName
from trainshed_cluster.remote.gang import GangRecord
from trainshed_cluster.remote.idle_allocations import IdleAllocations


def _lab(directory: Path, keep: float = 0.0) -> RemoteLab:
    return RemoteLab(directory, free_port(), keep=keep, lease=40.0)


def _allocations(stage: Stage) -> dict[str, dict[str, int]]:
    assert isinstance(stage.lab, RemoteLab)
    return stage.lab.cluster.allocations()


async def _run_attempt(stage: Stage, uid: JobUid, program: Program, least: float = 60.0) -> None:
    """Run an attempt of one replica whose nodes are kept for `least` seconds, because the next one may take
    long.
    """
    await stage.allocate(uid)
    await stage.engine.launch([stage.plan(uid, program)])
    await stage.end(uid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idle_allocations, "_MIN_KEEP_SECONDS", least)
        await stage.engine.release(uid, 1)
    stage.forget(uid)


@needs_mounts
class TestRetry:
    @pytest.fixture
    def lab(self, tmp_path: Path) -> RemoteLab:
        return _lab(tmp_path)

    @run_with_stage
    async def test_retry_reuses_the_agent_of_the_failed_attempt(self, stage: Stage) -> None:
        uid = stage.job()
        await stage.allocate(uid)
        before = _allocations(stage)
        await _run_attempt(stage, uid, Program(prints=2, code=1))
        assert _allocations(stage) == before
        assert await stage.engine.allocations() == ()
        await stage.allocate(uid, attempt=2)
        assert _allocations(stage) == before
        await stage.engine.launch([stage.plan(uid, Program(prints=1, runs=None), attempt=2)])
        await stage.until(lambda: len(stage.lines(uid, attempt=2)) == 1, "the second one's line")
        assert len(stage.lines(uid)) == 2
        # A restarted service finds it again.
        await stage.restart()
        assert await stage.engine.allocations() == ((uid, 2),)
        await stage.wait_for_start(uid, attempt=2)
        await stage.engine.stop(uid, 2, 0)
        await stage.end(uid, attempt=2)
        await stage.engine.release(uid, 2)
        stage.forget(uid, 2)
        await stage.until(lambda: not _allocations(stage), "the release of the allocation")

    @run_with_stage
    async def test_service_shutdown_releases_kept_allocations(self, stage: Stage) -> None:
        await _run_attempt(stage, stage.job(), Program(code=1))
        await stage.restart()
        assert _allocations(stage) == {}
        assert await stage.engine.allocations() == ()

    @run_with_stage
    async def test_kept_allocation_waits_only_briefly_for_the_next_job(self, stage: Stage) -> None:
        first, second = stage.job(), stage.job()
        await _run_attempt(stage, first, Program(prints=1))
        before = _allocations(stage)
        await _run_attempt(stage, second, Program(prints=2), least=2.0)
        assert before and _allocations(stage) == before
        await stage.until(lambda: not _allocations(stage), "the release of the allocation")
        assert [len(stage.lines(uid)) for uid in (first, second)] == [1, 2]


@needs_mounts
class TestKeeping:
    @pytest.fixture
    def lab(self, tmp_path: Path) -> RemoteLab:
        return _lab(tmp_path, keep=600.0)

    @run_with_stage
    async def test_kept_allocation_is_not_released_during_its_transfer_to_the_next_job(
        self, stage: Stage
    ) -> None:
        """Even if the write takes long, the allocation is not released as unused."""
        first, second, go, rounds = stage.job(), stage.job(), threading.Event(), list[int]()
        write, names = Records.write, IdleAllocations.names

        def slow(records: Records, record: GangRecord) -> None:
            if record.adopted_names:
                rounds.append(0)
                go.wait(30)
            write(records, record)

        def count_round(kept: IdleAllocations) -> set[AllocationName]:
            rounds.extend([1] if rounds else [])
            return names(kept)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slots, "_CHECK_INTERVAL", 0.01)
            patch.setattr(IdleAllocations, "names", count_round)
            await stage.restart()
            await _run_attempt(stage, first, Program())
            before = _allocations(stage)
            patch.setattr(Records, "write", slow)
            async with asyncio.TaskGroup() as group:
                group.create_task(stage.allocate(second))
                await stage.until(lambda: len(rounds) > 5, "checks for unused allocations")
                go.set()
            assert before and _allocations(stage) == before

    @run_with_stage
    async def test_transfer_of_a_kept_allocation_continues_after_a_service_restart(
        self, stage: Stage
    ) -> None:
        """The adoption is recorded, but the agent has not received it."""
        first, second, reached = stage.job(), stage.job(), asyncio.Event()
        call = AgentHandle.call

        async def unheard(agent: AgentHandle, order: messages.AnyCall) -> messages.AnyAnswer:
            if isinstance(order, messages.Adopt):
                reached.set()
                await asyncio.Event().wait()
            return await call(agent, order)

        await _run_attempt(stage, first, Program())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(AgentHandle, "call", unheard)
            adopting = asyncio.create_task(stage.allocate(second))
            await asyncio.wait_for(reached.wait(), 60)
            adopting.cancel()
            await stage.restart()
        await _run_attempt(stage, second, Program(prints=2))
        assert len(stage.lines(second)) == 2

    @run_with_stage
    async def test_kept_allocation_is_released_if_the_next_job_needs_different_resources(
        self, stage: Stage
    ) -> None:
        first, second = stage.job(), stage.job()
        await _run_attempt(stage, first, Program())
        before = _allocations(stage)
        await stage.allocate(second, PRIMARY, SECOND_REPLICA)
        assert before and not before.keys() & _allocations(stage).keys()

    @run_with_stage
    async def test_allocation_that_the_cluster_may_soon_end_is_not_kept(self, stage: Stage) -> None:
        assert isinstance(stage.lab, RemoteLab)
        stage.lab.cluster.mark((await stage.nodes())[0], "old", True)
        await _run_attempt(stage, stage.job(), Program())
        assert _allocations(stage) == {}

    @run_with_stage
    async def test_kept_allocation_survives_the_death_of_its_agent(self, stage: Stage) -> None:
        assert isinstance(stage.lab, RemoteLab)
        first, second = stage.job(), stage.job()
        await _run_attempt(stage, first, Program())
        before = _allocations(stage)
        stage.lab.end_agents((await stage.nodes())[0])
        await stage.until(lambda: _allocations(stage) == {}, "the release of the agent's allocation")
        await _run_attempt(stage, second, Program(prints=1))
        assert _allocations(stage) != before
        assert len(stage.lines(second)) == 1
