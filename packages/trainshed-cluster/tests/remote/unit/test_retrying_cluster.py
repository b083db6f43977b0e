"""A cluster that may be unavailable at the start: `trainshed_cluster.remote.retrying_cluster`."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from trainshed.core.capacity import Delay, Node, WaitReason
from trainshed.core.names import JobUid
from trainshed.engines.port import NodeState
from trainshed_cluster.remote import retrying_cluster as module
from trainshed_cluster.remote.cluster import (
    Allocation,
    AllocationName,
    Cluster,
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    NodeNeed,
    NodeReport,
)
from trainshed_cluster.remote.retrying_cluster import RetryingCluster

pytestmark = pytest.mark.anyio

ALLOCATION = AllocationName("abc", JobUid(7), 1, 0)


@dataclass
class RecordingCluster:
    """The part of a cluster that these tests use. It records the calls."""

    latest: ClusterReport
    down: bool = False
    #: Why the cluster can never be used.
    rejection: str = ""
    calls: list[str] = field(default_factory=list[str])
    changes: asyncio.Queue[ClusterReport | None] = field(default_factory=asyncio.Queue[ClusterReport | None])

    async def start(self) -> None:
        if self.rejection:
            raise ClusterRefused(self.rejection)
        if self.down:
            raise ClusterUnavailable("no answer")
        self.calls.append("start")

    async def close(self) -> None:
        self.calls.append("close")
        self.changes.put_nowait(None)

    def report(self) -> ClusterReport:
        return self.latest

    async def watch(self) -> AsyncIterator[ClusterReport]:
        while (report := await self.changes.get()) is not None:
            yield report

    async def acquire(
        self, name: AllocationName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Allocation:
        return Allocation(name, "12", tuple(need.node for need in needs))


def new_report(node: str, queried_at: float, allocation: AllocationName | None = None) -> ClusterReport:
    return ClusterReport(
        (NodeReport(Node(node, 4, 2**30), NodeState.UP),),
        {allocation: frozenset({node})} if allocation else {},
        queried_at,
        {allocation: Delay(WaitReason.CLUSTER, "Priority")} if allocation else {},
    )


async def next_report(cluster: Cluster) -> ClusterReport:
    """Return the next report."""
    return await anext(aiter(cluster.watch()))


async def test_cluster_that_is_unavailable_at_service_start_is_used_after_its_first_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_RETRY_INTERVAL", 0.001)
    slurm = RecordingCluster(new_report("n1", 5.0, ALLOCATION), down=True)
    awaited = RetryingCluster(cast(Cluster, slurm), "slurm")
    await awaited.start()
    [stand_in] = awaited.report().nodes
    assert (stand_in.node.name, stand_in.node.unreached) == ("slurm", "no answer")
    assert (stand_in.state, stand_in.cause) == (NodeState.GONE, "cluster slurm does not respond: no answer")
    # The state of allocations is unknown.
    for asking in (awaited.acquire(ALLOCATION, [NodeNeed("n1", 1, 1, 1)]), awaited.release(ALLOCATION)):
        with pytest.raises(ClusterUnavailable, match="cluster slurm does not respond: no answer"):
            await asking
    assert not slurm.calls
    slurm.rejection = "its users may not be seen"
    assert (await next_report(awaited)).nodes[0].node.unreached == slurm.rejection
    slurm.rejection, slurm.down = "", False
    assert await next_report(awaited) == slurm.latest
    assert await awaited.acquire(ALLOCATION, [NodeNeed("n1", 1, 1, 1)]) == Allocation(
        ALLOCATION, "12", ("n1",)
    )
    slurm.latest = new_report("n2", 9.0)
    slurm.changes.put_nowait(slurm.latest)
    assert (await next_report(awaited)).nodes[0].node.name == "n2"
    await awaited.close()


async def test_permanently_unusable_cluster_fails_the_start_of_the_service() -> None:
    slurm = RecordingCluster(new_report("n1", 5.0), rejection="there is no command salloc")
    with pytest.raises(ClusterRefused, match="there is no command salloc"):
        await RetryingCluster(cast(Cluster, slurm), "slurm").start()
    assert slurm.calls[-1] == "close"
