"""Joins several clusters, each for its own regions, to one `Cluster` whose nodes are named CLUSTER.NODE. A
single cluster can be joined with nothing: its nodes keep their names, and it need not answer when the service
starts."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.capacity import Delay
from trainshed.core.held import Leftover
from trainshed.core.routes import Acceptance
from trainshed.engines.port import Node, NodeState
from trainshed.eventloop.background import Crew, joined
from trainshed_cluster.remote.cluster import (
    Cluster,
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    Hold,
    HoldEnd,
    HoldName,
    NodeNeed,
    NodeReport,
    Owner,
)

log = logging.getLogger(__name__)

_START_SECONDS = 10.0
"""Seconds that a start waits for all clusters; from then on one that answers is enough."""
_AGAIN_SECONDS = 5.0
"""Seconds between two tries to reach a cluster that did not answer."""


class Member(Struct, frozen=True):
    """One of the joined clusters."""

    cluster: Cluster
    #: Regions whose jobs may run there; () = all.
    regions: tuple[str, ...]
    #: Name of this service in its holds there (`HoldName.service`), because two members may be the same
    #: cluster.
    service: str


ALONE = ""
"""The name of a cluster that is the only one."""


class JoinedClusters:
    """The joined clusters. `members`: by their names, which contain no dot, or one named `ALONE`, which
    messages call `kind`. A job has one region, and a region one member, so that all holds of an attempt are
    on one member."""

    def __init__(self, members: Mapping[str, Member], service: str, kind: str = "cluster") -> None:
        self._members = dict(members)
        self._kind = kind
        self._service = service
        #: Why clusters have not answered yet, by name. Nothing is requested from them.
        self._unreached: dict[str, str] = {}
        self._tasks = Crew()
        self._reader: asyncio.Queue[ClusterReport | None] = asyncio.Queue()
        #: The cluster that each hold was requested from.
        self._asked: dict[HoldName, str] = {}

    async def start(self) -> None:
        """Start all members; those that do not answer now join later. Raises ClusterRefused if one can never
        be queried."""
        self._unreached = dict.fromkeys(self._members, "it has not answered yet")
        trying = {name: joined(self._reach(name)) for name in self._members}
        try:
            tried, _ = await asyncio.wait(trying.values(), timeout=_START_SECONDS)
            for task in tried:
                task.result()
        except BaseException:
            for task in trying.values():
                task.cancel()
            await asyncio.gather(*trying.values(), return_exceptions=True)
            await self._close_members()
            raise
        for name, why in self._unreached.items():
            log.warning(
                "%s does not answer; its jobs wait until it does: %s", self._title(name), why
            )
        for name, task in trying.items():
            self._tasks.begin(self._take_up(name, task), f"following cluster {name}")

    async def close(self) -> None:
        await self._tasks.close()
        await self._close_members()
        self._reader.put_nowait(None)

    def report(self) -> ClusterReport:
        if ALONE in self._members and not self._unreached:
            return self._members[ALONE].cluster.report()
        nodes: list[NodeReport] = []
        agents: dict[HoldName, frozenset[str]] = {}
        delays: dict[HoldName, Delay] = {}
        idle: set[HoldName] = set()
        looked = 0.0
        for name, member in self._members.items():
            if why := self._unreached.get(name):
                nodes.append(self._stand_in(name, member, why))
                continue
            report = member.cluster.report()
            idle.update(map(self._outer, report.idle))
            looked = max(looked, report.looked)
            nodes += [
                self._named(name, member, reported, report.looked) for reported in report.nodes
            ]
            for hold, on in report.agents.items():
                agents[self._outer(hold)] = frozenset(_joined(name, node) for node in on)
            delays |= {self._outer(hold): delay for hold, delay in report.delays.items()}
        return ClusterReport(tuple(nodes), agents, looked, delays, frozenset(idle))

    async def watch(self) -> AsyncIterator[ClusterReport]:
        while (report := await self._reader.get()) is not None:
            yield report

    def suspect(self, node: str) -> None:
        name, own = self._split(node)
        self._members[name].cluster.suspect(own)

    def detach(self) -> None:
        for member in self._members.values():
            member.cluster.detach()

    async def owner(self, project: str, node: str) -> Owner:
        where, own = self._split(node)
        if where not in self._members:
            raise ClusterRefused(f"there is no cluster {where} any more, of which the node is")
        try:
            return await self._members[where].cluster.owner(project, own)
        except ClusterRefused as failure:
            if where == ALONE:
                raise
            raise ClusterRefused(f"cluster {where}: {failure}") from failure

    async def acquire(
        self, name: HoldName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Hold:
        places = {self._split(need.node)[0] for need in needs}
        (where,) = places
        if where not in self._members:
            raise ClusterUnavailable(f"there is no cluster {where} any more, of which the node is")
        self._require(where)
        self._asked[name] = where
        member = self._members[where]
        inner = [replace(need, node=self._split(need.node)[1]) for need in needs]
        own = (
            None
            if avoid is None
            else [inside for at, inside in map(self._split, avoid) if at == where]
        )
        hold = await member.cluster.acquire(self._inner(where, name), inner, avoid=own)
        return Hold(name, hold.cluster_id, tuple(_joined(where, node) for node in hold.nodes))

    async def start_agent(self, hold: Hold, node: str, argv: Sequence[str], stdin: bytes) -> None:
        where, own = self._split(node)
        self._require(where)
        nodes = tuple(self._split(node_name)[1] for node_name in hold.nodes)
        inner = Hold(self._inner(where, hold.name), hold.cluster_id, nodes)
        await self._members[where].cluster.start_agent(inner, own, argv, stdin)

    async def ended(self, name: HoldName) -> HoldEnd | None:
        silent: ClusterUnavailable | None = None
        for where, member in self._members.items():
            if where in self._unreached:
                continue
            try:
                if end := await member.cluster.ended(self._inner(where, name)):
                    return end
            except ClusterUnavailable as failure:
                silent = failure
        if silent is not None:
            raise silent
        return None

    async def ending(self, name: HoldName) -> HoldEnd | None:
        for key in self._candidates(name):
            if key in self._unreached:
                continue
            if end := await self._members[key].cluster.ending(self._inner(key, name)):
                return end
        return None

    async def require_answer(self, name: HoldName) -> None:
        for key in self._candidates(name):
            self._require(key)
            await self._members[key].cluster.require_answer(self._inner(key, name))

    async def settle(self, names: Collection[HoldName]) -> tuple[Leftover, ...]:
        wanted: dict[str, list[HoldName]] = {key: [] for key in self._members}
        for name in names:
            for key in self._candidates(name):
                wanted[key].append(self._inner(key, name))
        left = await asyncio.gather(
            *(self._members[key].cluster.settle(some) for key, some in wanted.items())
        )
        return tuple(key for some in left for key in some)

    async def give_back(self, name: HoldName) -> None:
        for key in self._candidates(name):
            self._require(key)
            await self._members[key].cluster.give_back(self._inner(key, name))
        self._asked.pop(name, None)

    def _candidates(self, name: HoldName) -> list[str]:
        """Return the clusters that a hold may be on: the one that it was requested from, after a restart the
        one that reports it, and otherwise all."""
        where = self._asked.get(name) or next(
            (
                key
                for key, member in self._members.items()
                if key not in self._unreached
                and self._inner(key, name) in member.cluster.report().agents
            ),
            "",
        )
        return [where] if where else list(self._members)

    def _inner(self, key: str, name: HoldName) -> HoldName:
        """Return a hold's name on one of the clusters."""
        return replace(name, service=self._members[key].service)

    def _outer(self, name: HoldName) -> HoldName:
        return replace(name, service=self._service)

    def _named(self, name: str, member: Member, report: NodeReport, looked: float) -> NodeReport:
        node = report.node
        accepts = replace(node.accepts, regions=member.regions)
        # Other nodes of its cluster reach it by its name there.
        return replace(
            report,
            node=replace(node, name=_joined(name, node.name), accepts=accepts),
            address=report.address or node.name,
            looked=looked if report.looked is None else report.looked,
        )

    def _require(self, name: str) -> None:
        """Raise ClusterUnavailable if a member does not answer."""
        if why := self._unreached.get(name):
            raise ClusterUnavailable(f"{self._title(name)} does not answer: {why}")

    async def _reach(self, name: str) -> None:
        """Try once to start a member; a failure is noted in `_unreached`."""
        try:
            await self._members[name].cluster.start()
        except ClusterUnavailable as failure:
            self._unreached[name] = str(failure)
        else:
            del self._unreached[name]

    async def _take_up(self, name: str, first: asyncio.Task[None]) -> None:
        """Follow a member's reports once it answers."""
        was_away = name in self._unreached
        try:
            await asyncio.shield(first)
        finally:
            first.cancel()
        while why := self._unreached.get(name):
            await asyncio.sleep(_AGAIN_SECONDS)
            await self._reach(name)
            if self._unreached.get(name, why) != why:
                self._reader.put_nowait(self.report())
        if was_away:
            log.info("%s answers", self._title(name))
            self._reader.put_nowait(self.report())
        async for _ in self._members[name].cluster.watch():
            self._reader.put_nowait(self.report())

    async def _close_members(self) -> None:
        for member in self._members.values():
            await member.cluster.close()

    def _title(self, name: str) -> str:
        return f"cluster {name or self._kind}"

    def _stand_in(self, name: str, member: Member, why: str) -> NodeReport:
        """Return the report of a cluster whose nodes are not known: one entry that is GONE, with the
        reason."""
        regions = Acceptance(regions=member.regions)
        node = Node(name or self._kind, 0, 0, accepts=regions, unreached=why)
        return NodeReport(node, NodeState.GONE, f"{self._title(name)} does not answer: {why}")

    def _split(self, node: str) -> tuple[str, str]:
        """Return the cluster of a node, and the node's name there."""
        return (ALONE, node) if ALONE in self._members else _split(node)


def cluster_of(node: str) -> str:
    """Return the name of the cluster that a node belongs to."""
    return _split(node)[0]


def _split(node: str) -> tuple[str, str]:
    cluster, _, own = node.partition(".")
    return cluster, own


def _joined(cluster: str, node: str) -> str:
    return node if cluster == ALONE else f"{cluster}.{node}"
