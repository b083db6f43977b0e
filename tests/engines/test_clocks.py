"""A node whose clock is hours off (spec/invariants#one-clock): real agents on nodes that are processes, and a
service with a wrong clock.
"""

import asyncio
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from tests.engines.conformance.stage import plan_in
from tests.engines.process_cluster import NODES
from tests.engines.remote_lab import new_engine
from tests.isolation import needs_mounts
from tests.unit.jobs import PRIMARY, job
from trainshed.core.job import Scheduling
from trainshed.core.lifecycle.events import JobAdmitted, RuntimePrepared
from trainshed.core.lifecycle.machine import deadlines, step
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaStarted
from trainshed.core.names import JobUid
from trainshed.engines.port import NodeChanged, NodeState, ReplicaReport, SlotRequest
from trainshed_cluster.remote import slots

pytestmark = needs_mounts

HOUR = 3600 * 10**9


@patch.object(slots, "_ALLOCATE_TIMEOUT", 60.0)
@pytest.mark.parametrize("ahead", [7200, -7200])
async def test_wrong_clock_of_a_node_ends_no_job(tmp_path: Path, port: int, ahead: int) -> None:
    """Start, end and limit use the service's clock. The node reports its own offset."""

    def now() -> float:
        return time.time() + ahead

    engine = new_engine(tmp_path, port, now=now, lease=40.0)
    created = round(now() * 1e9)
    started: ReplicaStarted | None = None
    exited: ReplicaExited | None = None
    change: NodeChanged | None = None
    await engine.start()
    try:
        [slot] = await engine.allocate(JobUid(1), 1, [SlotRequest(PRIMARY, "r0", NODES[0])])
        await engine.launch([plan_in(slot, JobUid(1))])
        async with asyncio.timeout(60):
            async for event in engine.watch():
                match event:
                    case ReplicaReport(event=ReplicaStarted() as start):
                        started = start
                    case ReplicaReport(event=ReplicaExited() as end):
                        exited = end
                    case NodeChanged(state=NodeState.UP) if event.cause:
                        change = event
                    case _:
                        continue
                if started and exited and change:
                    break
        await engine.release(JobUid(1), 1)
    finally:
        await engine.close()
    assert started and exited and change
    seen = round(now() * 1e9)
    assert created <= started.at <= seen
    assert created <= exited.exit.started <= exited.exit.ended <= seen
    way = "behind" if ahead > 0 else "ahead of"
    assert change.node == NODES[0] and f"s {way} the service's: times in its logs" in str(change.cause)
    life = replace(job(1, scheduling=Scheduling(timeout=HOUR)), created=created)
    for what in (JobAdmitted(((PRIMARY, NODES[0]),)), RuntimePrepared(1), started):
        life = step(life, what, seen).job
    assert 0 <= max(limit.at for limit in deadlines(life)) - (created + HOUR) <= seen - created
