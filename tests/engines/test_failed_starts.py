"""Agents that exit at their start are restarted a few times, with growing delays."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engines.process_cluster import NODES, ProcessCluster
from tests.engines.remote_lab import new_engine
from tests.isolation import needs_mounts
from tests.ports import free_port
from trainshed.core.capacity import Delay, WaitReason
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import (
    EngineEvent,
    EngineUnavailable,
    NodeChanged,
    NodeState,
    Slot,
    SlotRequest,
    StartFailed,
    StartWaits,
)
from trainshed.eventloop.background import begin
from trainshed_cluster.remote.engine import RemoteEngine

HERE, THERE = NODES
UID = JobUid(1)


class Site:
    """An engine whose nodes end agents, and its reports."""

    def __init__(self, directory: Path, port: int) -> None:
        self.engine: RemoteEngine = new_engine(
            directory, port, start_intervals=(0.0, 0.05), quarantine=5.0, lease=40.0
        )
        self.cluster = ProcessCluster(directory / "cluster")
        self.events: list[EngineEvent] = []
        self.last_heard = asyncio.Event()

    async def hear(self) -> None:
        async for event in self.engine.watch():
            self.events.append(event)
            self.last_heard.set()

    async def wait_for_node(self, node: str, state: NodeState) -> NodeChanged:
        """Wait for the expected state of a node, and return its last report."""
        while True:
            changes = [event for event in self.events if isinstance(event, NodeChanged)]
            if changes and (changes[-1].node, changes[-1].state) == (node, state):
                return changes[-1]
            self.last_heard.clear()
            await self.last_heard.wait()

    def delays(self) -> list[Delay | None]:
        return [event.delay for event in self.events if isinstance(event, StartWaits)]

    async def allocate(self, node: str, uid: JobUid = UID) -> tuple[Slot, ...]:
        """Retry like the service until the call succeeds. Raises StartFailed."""
        request = SlotRequest(ReplicaId(0, 0), f"r{uid}", node)
        while True:
            try:
                return await self.engine.allocate(uid, 1, [request])
            except EngineUnavailable as failure:
                if re.search("agents do not start|is a link, belongs to", str(failure)):
                    raise
                await asyncio.sleep(0.02)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path, free_port())
    await site.engine.start()
    hearing = begin(site.hear(), "hearing an engine")
    yield site
    for uid, attempt in await site.engine.allocations():
        await site.engine.stop(uid, attempt, 0)
        await site.engine.release(uid, attempt)
    await site.engine.close()
    await hearing


@needs_mounts
@pytest.mark.parametrize(
    ("how", "words"), [("stillborn", "and said: no such file"), ("short-lived", "and its programs with it")]
)
async def test_agent_start_is_abandoned_after_three_failures_and_its_error_is_reported(
    site: Site, how: str, words: str
) -> None:
    site.cluster.mark(HERE, how, is_set=True)
    async with asyncio.timeout(60):
        with pytest.raises(StartFailed, match=f"agents do not start on node {HERE}: 3 failed") as raised:
            await site.allocate(HERE)
    assert words in str(raised.value) and "trainshed doctor" in str(raised.value)
    first, second = [delay for delay in site.delays() if delay]
    assert first.cause is second.cause is WaitReason.ENGINE
    assert words in first.message and first.message.endswith("another one starts at once")
    assert "2 times so far" in second.message and second.message.endswith("in 0.05 s")


@needs_mounts
@pytest.mark.parametrize("is_readmitted", [True, False])
async def test_node_whose_agents_fail_is_quarantined_if_agents_start_on_other_nodes(
    site: Site, is_readmitted: bool
) -> None:
    """The quarantine ends after some time, or when an administrator enables the node again."""
    site.cluster.mark(HERE, "stillborn", is_set=True)
    async with asyncio.timeout(60):
        await site.allocate(THERE, JobUid(2))
        with pytest.raises(EngineUnavailable, match=f"agents do not start on node {HERE}"):
            await site.allocate(HERE)
        cause = (await site.wait_for_node(HERE, NodeState.QUARANTINED)).cause
        assert cause and f"{HERE} is quarantined until" in cause
        assert "and said: no such file" in cause
        site.cluster.mark(HERE, "stillborn", is_set=False)
        if is_readmitted:
            await site.engine.readmit(HERE)
        assert (await site.wait_for_node(HERE, NodeState.UP)).cause is None
        [slot] = await site.allocate(HERE)
    assert slot.node == HERE


@needs_mounts
async def test_node_directory_that_an_agent_rejects_is_reported_as_a_problem_of_the_node(
    tmp_path: Path, site: Site
) -> None:
    """docs/slurm.md: the wait reason and the node's page show the problem of the node."""
    directory = tmp_path / "nodes"
    directory.mkdir()
    directory.chmod(0o777)
    wrong = f"{directory} is a link, belongs to user 0, or is writable for other users"
    async with asyncio.timeout(60):
        with pytest.raises(EngineUnavailable, match=wrong):
            await site.allocate(HERE)
        assert wrong in str((await site.wait_for_node(HERE, NodeState.UP)).cause)
        directory.chmod(0o711)
        await site.allocate(HERE)
        while (await site.wait_for_node(HERE, NodeState.UP)).cause:
            await site.last_heard.wait()


@needs_mounts
async def test_allocation_succeeds_if_the_agent_starts_after_failed_attempts(site: Site) -> None:
    site.cluster.mark(HERE, "stillborn", is_set=True)
    async with asyncio.timeout(60):
        asking = begin(site.allocate(HERE), "asking for a slot")
        await site.last_heard.wait()
        site.cluster.mark(HERE, "stillborn", is_set=False)
        [slot] = await asking
    assert slot.node == HERE
    assert site.delays()[-1] is None, "the start does not wait anymore"
