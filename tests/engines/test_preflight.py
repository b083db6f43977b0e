"""A node on which a preflight fails is left alone: real agents, over nodes that are processes."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.engines.process_cluster import NODES
from tests.engines.remote_lab import new_engine
from tests.ports import free_port
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import EngineUnavailable, NodeChanged, NodeState, SlotRequest
from trainshed_cluster.remote.engine import RemoteEngine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: its nodes need root")


async def told(engine: RemoteEngine) -> NodeChanged:
    async with asyncio.timeout(20):
        async for event in engine.watch():
            if isinstance(event, NodeChanged):
                return event
    raise AssertionError("the engine was closed")


@pytest.fixture
def port() -> int:
    return free_port()


async def told_state(engine: RemoteEngine, state: NodeState) -> NodeChanged:
    """The next change to this state: that its clock is off is told of a node that is up, too."""
    while (seen := await told(engine)).state is not state:
        continue
    return seen


async def test_a_quarantine_ends_by_itself(tmp_path: Path, port: int) -> None:
    engine = new_engine(
        tmp_path, port, preflight=True, quarantine=1.0, now=lambda: time.time() - 60
    )
    request = SlotRequest(ReplicaId(0, 0), "r0", NODES[0], memory_bytes=1 << 20)
    await engine.start()
    try:
        with pytest.raises(EngineUnavailable, match="its clock is 60 s ahead of the service's"):
            await engine.allocate(JobUid(1), 1, [request])
        await told_state(engine, NodeState.QUARANTINED)
        seen = await told_state(engine, NodeState.UP)
        assert seen.node == NODES[0]
        await engine.stop(JobUid(1), 1, 0)
        await engine.release(JobUid(1), 1)
    finally:
        await engine.close()


async def test_an_unfit_node_is_left_alone_until_it_is_readmitted(
    tmp_path: Path, port: int
) -> None:
    clock = {"ahead": 60.0}

    def engine_of() -> RemoteEngine:
        return new_engine(tmp_path, port, preflight=True, now=lambda: time.time() + clock["ahead"])

    node = NODES[0]
    request = SlotRequest(ReplicaId(0, 0), "r0", node, memory_bytes=1 << 20)
    engine = engine_of()
    await engine.start()
    try:
        with pytest.raises(EngineUnavailable, match="its clock is 60 s behind the service's"):
            await engine.allocate(JobUid(1), 1, [request])
        seen = await told_state(engine, NodeState.QUARANTINED)
        assert seen.node == node
        assert "quarantined until" in seen.cause and "its clock is 60 s behind" in seen.cause
    finally:
        await engine.close()
    clock["ahead"] = 0.0
    engine = engine_of()
    await engine.start()
    try:
        seen = await told(engine)
        assert (seen.node, seen.state) == (node, NodeState.QUARANTINED), "it outlives the service"
        await engine.readmit(node)
        seen = await told(engine)
        assert (seen.node, seen.state, seen.cause) == (node, NodeState.UP, "")
        (slot,) = await engine.allocate(JobUid(1), 1, [request])
        assert slot.node == node
        await engine.stop(JobUid(1), 1, 0)
        await engine.release(JobUid(1), 1)
    finally:
        await engine.close()


@pytest.mark.parametrize("preflight", [False, True])
async def test_a_directory_that_is_refused_is_told_of_the_node(
    tmp_path: Path, port: int, preflight: bool
) -> None:
    """docs/slurm.md: whoever waits for the node, or looks at it, learns what is to be mended there."""
    directory, node = tmp_path / "nodes", NODES[0]
    directory.mkdir()
    directory.chmod(0o777)
    engine = new_engine(tmp_path, port, preflight=preflight)
    request = SlotRequest(ReplicaId(0, 0), "r0", node, memory_bytes=1 << 20)
    wrong = f"{directory} is a link, belongs to user 0, or can be written to by others"
    await engine.start()
    try:
        with pytest.raises(EngineUnavailable, match=wrong):
            await engine.allocate(JobUid(1), 1, [request])
        seen = await told(engine)
        if preflight and seen.state is NodeState.UP:
            seen = await told(engine)
        assert (seen.node, seen.state) == (
            node,
            NodeState.QUARANTINED if preflight else NodeState.UP,
        )
        assert wrong in seen.cause
        directory.chmod(0o711)
        if preflight:
            await engine.readmit(node)
        (slot,) = await engine.allocate(JobUid(1), 1, [request])
        while seen.cause:
            seen = await told(engine)
        assert (seen.node, seen.state, slot.node) == (node, NodeState.UP, node)
        await engine.stop(JobUid(1), 1, 0)
        await engine.release(JobUid(1), 1)
    finally:
        await engine.close()
