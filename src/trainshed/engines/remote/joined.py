"""Several clusters as one, each for regions of its own: a `Cluster` whose nodes are called CLUSTER.NODE."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from trainshed.core.capacity import Delay
from trainshed.engines.remote.cluster import (
    Cluster,
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    Hold,
    HoldName,
    NodeNeed,
    NodeReport,
    Owner,
)
from trainshed.eventloop.background import Crew


@dataclass(frozen=True, slots=True)
class Member:
    """One of the clusters."""

    cluster: Cluster
    #: Whose jobs may run there; () = those of every region.
    regions: tuple[str, ...]
    #: By which it knows this service's holds (`HoldName.service`): two members may be one cluster in truth.
    service: str


class JoinedClusters:
    """`members`: by their names, which hold no dot. A job is of one region, and a region is served by one
    member: so what an attempt holds is on one of them."""

    def __init__(self, members: Mapping[str, Member], service: str) -> None:
        self._members = dict(members)
        self._service = service
        self._tasks = Crew()
        self._reader: asyncio.Queue[ClusterReport | None] = asyncio.Queue()
        #: Where each hold was asked for.
        self._asked: dict[HoldName, str] = {}

    async def start(self) -> None:
        started: list[Cluster] = []
        try:
            for name, member in self._members.items():
                try:
                    await member.cluster.start()
                except ClusterUnavailable as failure:
                    raise ClusterUnavailable(f"cluster {name}: {failure}") from failure
                started.append(member.cluster)
        except BaseException:
            for cluster in started:
                await cluster.close()
            raise
        for name in self._members:
            self._tasks.keep(lambda name=name: self._follow(name), f"hearing cluster {name}")

    async def close(self) -> None:
        await self._tasks.close()
        for member in self._members.values():
            await member.cluster.close()
        self._reader.put_nowait(None)

    def report(self) -> ClusterReport:
        nodes: list[NodeReport] = []
        agents: dict[HoldName, frozenset[str]] = {}
        delays: dict[HoldName, Delay] = {}
        looked = 0.0
        for name, member in self._members.items():
            found = member.cluster.report()
            looked = max(looked, found.looked)
            nodes += [self._named(name, member, one, found.looked) for one in found.nodes]
            for hold, on in found.agents.items():
                agents[self._outer(hold)] = frozenset(f"{name}.{node}" for node in on)
            delays |= {self._outer(hold): delay for hold, delay in found.delays.items()}
        return ClusterReport(tuple(nodes), agents, looked, delays)

    async def watch(self) -> AsyncIterator[ClusterReport]:
        while (report := await self._reader.get()) is not None:
            yield report

    def detach(self) -> None:
        for member in self._members.values():
            member.cluster.detach()

    async def owner(self, project: str, node: str) -> Owner:
        where, own = _split(node)
        if where not in self._members:
            raise ClusterRefused(f"there is no cluster {where} any more, of which the node is")
        try:
            return await self._members[where].cluster.owner(project, own)
        except ClusterRefused as failure:
            raise ClusterRefused(f"cluster {where}: {failure}") from failure

    async def acquire(
        self, name: HoldName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Hold:
        places = {_split(need.node)[0] for need in needs}
        (where,) = places
        if where not in self._members:
            raise ClusterUnavailable(f"there is no cluster {where} any more, of which the node is")
        self._asked[name] = where
        member = self._members[where]
        inner = [replace(need, node=_split(need.node)[1]) for need in needs]
        own = (
            None if avoid is None else [_split(one)[1] for one in avoid if cluster_of(one) == where]
        )
        inner_name = replace(name, service=member.service)
        hold = await member.cluster.acquire(inner_name, inner, avoid=own)
        return Hold(name, hold.cluster_id, tuple(f"{where}.{node}" for node in hold.nodes))

    async def start_agent(self, hold: Hold, node: str, argv: Sequence[str], given: bytes) -> None:
        where, own = _split(node)
        member = self._members[where]
        nodes = tuple(_split(one)[1] for one in hold.nodes)
        inner = Hold(replace(hold.name, service=member.service), hold.cluster_id, nodes)
        await member.cluster.start_agent(inner, own, argv, given)

    async def give_back(self, name: HoldName) -> None:
        # After a restart only looks tell where it is; where none does, it may be anywhere.
        where = self._asked.get(name) or next(
            (
                one
                for one, member in self._members.items()
                if replace(name, service=member.service) in member.cluster.report().agents
            ),
            "",
        )
        for one in [where] if where else self._members:
            member = self._members[one]
            await member.cluster.give_back(replace(name, service=member.service))
        self._asked.pop(name, None)

    def _outer(self, name: HoldName) -> HoldName:
        return replace(name, service=self._service)

    def _named(self, name: str, member: Member, one: NodeReport, looked: float) -> NodeReport:
        node = one.node
        accepts = replace(node.accepts, regions=member.regions)
        # Others of its cluster reach it by what it is called there.
        return replace(
            one,
            node=replace(node, name=f"{name}.{node.name}", accepts=accepts),
            address=one.address or node.name,
            looked=looked,
        )

    async def _follow(self, name: str) -> None:
        async for _ in self._members[name].cluster.watch():
            self._reader.put_nowait(self.report())


def cluster_of(node: str) -> str:
    """The name of the cluster that a node is of."""
    return _split(node)[0]


def _split(node: str) -> tuple[str, str]:
    """The cluster's name, and the node's there."""
    cluster, _, own = node.partition(".")
    return cluster, own
