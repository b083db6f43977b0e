"""A cluster that need not answer at the start: `trainshed_cluster.remote.awaited`."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from trainshed.core.capacity import Delay, Node, WaitReason
from trainshed.core.names import JobUid
from trainshed.engines.port import NodeState
from trainshed_cluster.remote import awaited as module
from trainshed_cluster.remote.awaited import AwaitedCluster
from trainshed_cluster.remote.cluster import (
    Cluster,
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    Hold,
    HoldName,
    NodeNeed,
    NodeReport,
)

pytestmark = pytest.mark.anyio

HOLD = HoldName("abc", JobUid(7), 1, 0)


@dataclass
class Recorder:
    """As much of a cluster as these tests ask; it notes that."""

    latest: ClusterReport
    down: bool = False
    #: Why it can never be asked.
    refusal: str = ""
    calls: list[str] = field(default_factory=list[str])
    changes: asyncio.Queue[ClusterReport | None] = field(
        default_factory=asyncio.Queue[ClusterReport | None]
    )

    async def start(self) -> None:
        if self.refusal:
            raise ClusterRefused(self.refusal)
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
        self, name: HoldName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Hold:
        return Hold(name, "12", tuple(need.node for need in needs))


def a_report(node: str, looked: float, hold: HoldName | None = None) -> ClusterReport:
    return ClusterReport(
        (NodeReport(Node(node, 4, 2**30), NodeState.UP),),
        {hold: frozenset({node})} if hold else {},
        looked,
        {hold: Delay(WaitReason.CLUSTER, "Priority")} if hold else {},
    )


async def changed(cluster: Cluster) -> ClusterReport:
    """The next report."""
    return await anext(aiter(cluster.watch()))


async def test_a_cluster_that_does_not_answer_at_the_start_is_taken_up_when_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.001)
    slurm = Recorder(a_report("n1", 5.0, HOLD), down=True)
    awaited = AwaitedCluster(cast(Cluster, slurm), "slurm")
    await awaited.start()
    [stand_in] = awaited.report().nodes
    assert (stand_in.node.name, stand_in.node.unreached) == ("slurm", "no answer")
    assert (stand_in.state, stand_in.cause) == (
        NodeState.GONE,
        "cluster slurm does not answer: no answer",
    )
    # What it may hold, nobody knows.
    for asking in (awaited.acquire(HOLD, [NodeNeed("n1", 1, 1, 1)]), awaited.give_back(HOLD)):
        with pytest.raises(ClusterUnavailable, match="cluster slurm does not answer: no answer"):
            await asking
    assert not slurm.calls
    slurm.refusal = "its users may not be seen"
    assert (await changed(awaited)).nodes[0].node.unreached == slurm.refusal
    slurm.refusal, slurm.down = "", False
    assert await changed(awaited) == slurm.latest
    assert await awaited.acquire(HOLD, [NodeNeed("n1", 1, 1, 1)]) == Hold(HOLD, "12", ("n1",))
    slurm.latest = a_report("n2", 9.0)
    slurm.changes.put_nowait(slurm.latest)
    assert (await changed(awaited)).nodes[0].node.name == "n2"
    await awaited.close()


async def test_a_cluster_that_can_never_be_asked_is_a_mistake_of_the_settings() -> None:
    slurm = Recorder(a_report("n1", 5.0), refusal="there is no command salloc")
    with pytest.raises(ClusterRefused, match="there is no command salloc"):
        await AwaitedCluster(cast(Cluster, slurm), "slurm").start()
    assert slurm.calls[-1] == "close"
