"""Several clusters as one: `trainshed_cluster.remote.joined`."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from trainshed.core.capacity import Delay, WaitReason
from trainshed.core.held import Leftover
from trainshed.core.lifecycle.replica_events import Loss
from trainshed.core.names import JobUid
from trainshed.core.routes import Acceptance
from trainshed.engines.port import Node, NodeState
from trainshed_cluster.remote import joined as module
from trainshed_cluster.remote.cluster import (
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    Hold,
    HoldEnd,
    HoldName,
    NodeNeed,
    NodeReport,
    Owner,
    unreached,
)
from trainshed_cluster.remote.joined import ALONE, JoinedClusters, Member

pytestmark = pytest.mark.anyio

HOLD = HoldName("abc", JobUid(7), 1, 0)


@dataclass
class Recorder:
    """A cluster that notes what it is asked."""

    found: ClusterReport
    down: bool = False
    #: Why it can never be asked.
    refusal: str = ""
    #: It had the hold, which was cancelled.
    held: bool = False
    asked: list[str] = field(default_factory=list[str])
    changes: asyncio.Queue[ClusterReport | None] = field(
        default_factory=asyncio.Queue[ClusterReport | None]
    )

    async def start(self) -> None:
        if self.refusal:
            raise ClusterRefused(self.refusal)
        if self.down:
            raise ClusterUnavailable("no answer")
        self.asked.append("start")

    async def close(self) -> None:
        self.asked.append("close")
        self.changes.put_nowait(None)

    async def require_answer(self, name: HoldName) -> None:
        self.asked.append(f"require_answer {name}")

    async def settle(self, names: Collection[HoldName]) -> tuple[Leftover, ...]:
        return ()

    def report(self) -> ClusterReport:
        return self.found

    async def watch(self) -> AsyncIterator[ClusterReport]:
        while (report := await self.changes.get()) is not None:
            yield report

    async def owner(self, project: str, node: str) -> Owner:
        if not project:
            raise ClusterRefused("nobody's")
        return Owner(f"{project}-on-{node}")

    def suspect(self, node: str) -> None:
        pass

    def detach(self) -> None:
        self.asked.append("detach")

    async def acquire(
        self, name: HoldName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Hold:
        nodes = tuple(need.node for need in needs)
        self.asked.append(f"acquire {name} {nodes}")
        return Hold(name, "12", nodes)

    async def start_agent(self, hold: Hold, node: str, argv: Sequence[str], stdin: bytes) -> None:
        self.asked.append(f"agent {hold.name} {hold.nodes} {node}: {stdin.decode()}")

    async def ended(self, name: HoldName) -> HoldEnd | None:
        return HoldEnd(Loss.ALLOCATION_REVOKED, f"{name} was cancelled") if self.held else None

    async def ending(self, name: HoldName) -> HoldEnd | None:
        return HoldEnd(Loss.CLUSTER_PREEMPTED, f"{name} is preempted") if self.held else None

    async def give_back(self, name: HoldName) -> None:
        self.asked.append(f"give back {name}")


def a_report(node: str, looked: float, hold: HoldName | None = None) -> ClusterReport:
    return ClusterReport(
        (NodeReport(Node(node, 4, 2**30), NodeState.UP),),
        {hold: frozenset({node})} if hold else {},
        looked,
        {hold: Delay(WaitReason.CLUSTER, "Priority")} if hold else {},
    )


def two(*, held: bool = False, down: bool = False) -> tuple[JoinedClusters, Recorder, Recorder]:
    inner = replace(HOLD, service="abcwest")
    east = Recorder(a_report("n1", 5.0))
    west = Recorder(a_report("n1", 3.0, inner if held else None), down)
    members = {
        "east": Member(east, ("us-east1",), "abceast"),
        "west": Member(west, ("us-west1",), "abcwest"),
    }
    return JoinedClusters(members, "abc"), east, west


async def test_nodes_are_told_by_cluster_with_the_regions_that_they_serve() -> None:
    joined, _, _ = two(held=True)
    report = joined.report()
    assert [(one.node.name, one.address, one.looked) for one in report.nodes] == [
        ("east.n1", "n1", 5.0),
        ("west.n1", "n1", 3.0),
    ]
    assert report.nodes[1].node.accepts == Acceptance(regions=("us-west1",))
    assert report.agents == {HOLD: frozenset({"west.n1"})}
    assert report.delays[HOLD].message == "Priority"


async def test_what_is_asked_goes_to_the_cluster_of_the_node() -> None:
    joined, east, west = two()
    hold = await joined.acquire(HOLD, [NodeNeed("west.n1", 1, 1, 1)])
    assert hold == Hold(HOLD, "12", ("west.n1",))
    await joined.start_agent(hold, "west.n1", ["python3"], b"a document")
    await joined.give_back(HOLD)
    name = "trainshed-abcwest-7-1-0"
    assert west.asked == [
        f"acquire {name} ('n1',)",
        f"agent {name} ('n1',) n1: a document",
        f"give back {name}",
    ]
    assert not east.asked
    with pytest.raises(ClusterUnavailable, match="no cluster north"):
        await joined.acquire(HOLD, [NodeNeed("north.n1", 1, 1, 1)])


async def test_after_a_restart_what_is_held_is_found_where_it_is_or_asked_for_everywhere() -> None:
    joined, east, west = two(held=True)
    await joined.give_back(HOLD)
    assert (len(east.asked), len(west.asked)) == (0, 1)
    joined, east, west = two()
    await joined.give_back(HOLD)
    assert (len(east.asked), len(west.asked)) == (1, 1)


async def test_how_a_hold_ended_is_told_by_the_cluster_that_had_it() -> None:
    joined, _, west = two(held=True)
    west.held = True
    end = await joined.ended(HOLD)
    assert end == HoldEnd(Loss.ALLOCATION_REVOKED, "trainshed-abcwest-7-1-0 was cancelled")
    end = await joined.ending(HOLD)
    assert end == HoldEnd(Loss.CLUSTER_PREEMPTED, "trainshed-abcwest-7-1-0 is preempted")
    west.held = False
    assert await joined.ended(HOLD) is await joined.ending(HOLD) is None


async def test_a_cluster_that_does_not_answer_at_the_start_is_taken_up_when_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.001)
    joined, _, west = two(down=True)
    await joined.start()
    stand_in = joined.report().nodes[1]
    assert (stand_in.node.name, stand_in.node.unreached) == ("west", "no answer")
    assert stand_in.node.accepts == Acceptance(regions=("us-west1",))
    assert (stand_in.state, stand_in.cause) == (
        NodeState.GONE,
        "cluster west does not answer: no answer",
    )
    # What it may hold, nobody knows.
    for asked in (joined.acquire(HOLD, [NodeNeed("west.n1", 1, 1, 1)]), joined.give_back(HOLD)):
        with pytest.raises(ClusterUnavailable, match="cluster west does not answer: no answer"):
            await asked
    assert not west.asked
    west.down = False
    async for report in joined.watch():
        assert [one.node.name for one in report.nodes] == ["east.n1", "west.n1"]
        break
    west.found = a_report("n2", 9.0)
    west.changes.put_nowait(west.found)
    async for report in joined.watch():
        assert report.nodes[1].node.name == "west.n2"
        break
    await joined.close()


async def test_a_cluster_that_can_never_be_asked_is_a_mistake_of_the_settings() -> None:
    joined, east, west = two()
    west.refusal = "there is no command salloc"
    with pytest.raises(ClusterRefused, match="there is no command salloc"):
        await joined.start()
    assert east.asked[-1] == west.asked[-1] == "close"


async def test_one_cluster_alone_is_waited_for_too_and_its_nodes_keep_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.001)
    only = Recorder(a_report("n1", 5.0, HOLD), down=True)
    joined = JoinedClusters({ALONE: Member(only, (), "abc")}, "abc", "slurm")
    await joined.start()
    [stand_in] = joined.report().nodes
    assert (stand_in.node.name, stand_in.state) == ("slurm", NodeState.GONE)
    assert stand_in.cause == "cluster slurm does not answer: no answer"
    assert unreached([stand_in.node], "n1") is stand_in.node
    with pytest.raises(ClusterUnavailable, match="cluster slurm does not answer: no answer"):
        await joined.acquire(HOLD, [NodeNeed("n1", 1, 1, 1)])
    only.down = False
    async for report in joined.watch():
        assert report == only.found
        break
    assert await joined.acquire(HOLD, [NodeNeed("n1", 1, 1, 1)]) == Hold(HOLD, "12", ("n1",))
    with pytest.raises(ClusterRefused, match=r"^nobody's"):
        await joined.owner("", "n1")
    await joined.close()


async def test_whose_jobs_are_is_asked_of_the_cluster_of_their_node() -> None:
    joined, _, _ = two()
    assert await joined.owner("vision", "west.n1") == Owner("vision-on-n1")
    with pytest.raises(ClusterRefused, match="cluster east: nobody's"):
        await joined.owner("", "east.n1")
    with pytest.raises(ClusterRefused, match="there is no cluster north any more"):
        await joined.owner("vision", "north.n1")
