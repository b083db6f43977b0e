"""Files that nodes share with the service stand still: real agents, over nodes that are processes, and a file
system that the kernel freezes."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.process_cluster import NODES
from tests.engines.remote_lab import new_engine
from trainshed.core.launch import LaunchPlan, Limits
from trainshed.core.lifecycle.notes import FILES_BACK, FILES_STALLED
from trainshed.core.lifecycle.replica_events import ReplicaNoted
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import (
    EngineEvent,
    EngineUnavailable,
    NodeChanged,
    NodeState,
    ReplicaReport,
    SlotRequest,
)
from trainshed_cluster.remote import shared_files

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: it freezes a file system")


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    image, mounted = tmp_path / "image", tmp_path / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    try:
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], check=True)
    except (OSError, subprocess.CalledProcessError) as failure:
        pytest.skip(f"NOT TESTED: a shared file system that hangs: {failure}")
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)


def freeze(place: Path, how: str) -> None:
    subprocess.run(["fsfreeze", how, str(place)], check=True)


async def test_a_stall_is_told_of_the_node_and_of_what_runs_there(
    shared: Path, tmp_path: Path, port: int
) -> None:
    engine = new_engine(tmp_path, port, shared=(str(shared),), keep=60.0)
    replica = ReplicaId(0, 0)
    seen: asyncio.Queue[EngineEvent] = asyncio.Queue()

    async def hear() -> None:
        async for event in engine.watch():
            seen.put_nowait(event)

    async def both() -> tuple[ReplicaNoted, NodeChanged]:
        events: dict[type, EngineEvent | ReplicaNoted] = {}
        async with asyncio.timeout(shared_files.EVERY + shared_files.PATIENCE + 20):
            while len(events) < 2:
                event = await seen.get()
                if isinstance(event, ReplicaReport) and isinstance(event.event, ReplicaNoted):
                    events[ReplicaNoted] = event.event
                elif isinstance(event, NodeChanged):
                    events[NodeChanged] = event
        noted, changed = events[ReplicaNoted], events[NodeChanged]
        assert isinstance(noted, ReplicaNoted) and isinstance(changed, NodeChanged)
        return noted, changed

    async def note_of(uid: JobUid) -> ReplicaNoted:
        while True:
            event = await seen.get()
            if not isinstance(event, ReplicaReport) or event.job_uid != uid:
                continue
            if isinstance(event.event, ReplicaNoted):
                return event.event

    async def begin(uid: JobUid) -> None:
        [slot] = await engine.allocate(uid, 1, [SlotRequest(replica, "r0", NODES[0])])
        plan = LaunchPlan(
            uid,
            1,
            replica,
            1,
            argv=("sleep", "600"),
            environ=(),
            hostname="r0",
            address=slot.address,
            hosts=(("r0", slot.address),),
            limits=Limits(memory=0, cpu_weight=100),
        )
        await engine.launch([plan])

    async def end(uid: JobUid) -> None:
        await engine.stop(uid, 1, 0)
        while (uid, 1) in await engine.allocations():
            try:
                await engine.release(uid, 1)
            except EngineUnavailable:  # It still runs.
                await asyncio.sleep(0.05)

    await engine.start()
    hearing = asyncio.create_task(hear())
    try:
        await begin(JobUid(1))
        await asyncio.to_thread(freeze, shared, "--freeze")
        try:
            noted, changed = await both()
            # What begins there meanwhile is told as well, by the agent that goes on for it.
            await end(JobUid(1))
            await begin(JobUid(2))
            async with asyncio.timeout(20):
                later = await note_of(JobUid(2))
            assert (later.name, later.text) == (FILES_STALLED, noted.text)
        finally:
            await asyncio.to_thread(freeze, shared, "--unfreeze")
        assert (noted.name, noted.replica, noted.severity) == (FILES_STALLED, replica, "WARNING")
        assert (changed.node, changed.state) == (NODES[0], NodeState.UP)
        assert changed.cause == noted.text and "do not answer" in noted.text
        noted, changed = await both()
        assert (noted.name, noted.severity) == (FILES_BACK, "INFO")
        assert "answer again, after" in noted.text
        assert (changed.state, changed.cause) == (NodeState.UP, "")
        await end(JobUid(2))
    finally:
        await engine.close()
        await hearing
