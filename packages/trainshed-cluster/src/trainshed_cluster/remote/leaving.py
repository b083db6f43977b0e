"""Gives back the holds that no attempt has any more, in the background until the cluster takes them.

None of this is written down: a restarted service gives back all that it has no record of.
"""

import asyncio
from collections.abc import Collection

from msgspec import Struct

from trainshed.engines.port import EngineUnavailable
from trainshed.eventloop.background import Crew, joined
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.agents import Agents
from trainshed_cluster.remote.cluster import ClusterUnavailable, HoldName
from trainshed_cluster.remote.gang import Gang, GangRecord, hold_name, place

_PAUSE = 5.0
"""Seconds after which a hold is given back again that could not be."""


class LeavingHold(Struct, frozen=True, eq=False):
    """A hold that no attempt has any more, with its agents."""

    name: HoldName
    nodes: frozenset[str]
    agents: tuple[AgentHandle, ...]


class LeavingHolds:
    """The holds that are being given back, each by a task."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._cluster = agents.cluster
        self._identity = agents.options.identity
        self._holds: dict[LeavingHold, asyncio.Task[None]] = {}
        self._tasks = Crew()

    def take(self, gang: Gang, record: GangRecord, part: int) -> LeavingHold:
        """Take the hold of a part from an attempt, with its agents there, and give it back as soon as the
        cluster takes it. `record`: of when the attempt had that part."""
        agents = tuple(agent for agent in gang.agents.values() if agent.part == part)
        for agent in agents:
            del gang.agents[place(part, agent.node)]
        nodes = frozenset(need.node for need in record.parts[part])
        hold = LeavingHold(hold_name(self._identity, record, part), nodes, agents)
        self._holds[hold] = joined(self._give_back(hold))
        self._tasks.begin(self._insist(hold), f"giving back {hold.name}")
        return hold

    async def left(self, nodes: Collection[str]) -> None:
        """Wait until nothing is left of what was held on these nodes. Raises EngineUnavailable if the cluster
        does not take it now."""
        for hold in tuple(self._holds):
            if not hold.nodes.isdisjoint(nodes):
                await self._leave(hold)

    async def let_go(self, gang: Gang) -> None:
        """Give back all holds of an attempt that is over and not written down any more. Raises
        EngineUnavailable if the cluster does not answer; they are given back as soon as it does."""
        holds = [self.take(gang, gang.record, part) for part in gang.record.parts]
        await asyncio.gather(*map(self._leave, holds))

    def names(self) -> set[HoldName]:
        return {hold.name for hold in self._holds}

    async def close(self) -> None:
        """Give all back, as far as the cluster answers: `names` are those that it did not take."""
        await asyncio.gather(*map(self._leave, tuple(self._holds)), return_exceptions=True)
        await self._tasks.close()

    async def _insist(self, hold: LeavingHold) -> None:
        while hold in self._holds:
            try:
                await self._leave(hold)
            except EngineUnavailable:
                await asyncio.sleep(_PAUSE)

    async def _leave(self, hold: LeavingHold) -> None:
        """Wait until a hold is given back. Raises EngineUnavailable if the cluster does not take it now."""
        if task := self._holds.get(hold):
            if task.done():
                task = self._holds[hold] = joined(self._give_back(hold))
            await asyncio.shield(task)

    async def _give_back(self, hold: LeavingHold) -> None:
        try:
            await self._cluster.require_answer(hold.name)
            await asyncio.gather(*(self._agents.dismiss(agent) for agent in hold.agents))
            await self._cluster.give_back(hold.name)
        except ClusterUnavailable as failure:
            raise EngineUnavailable(str(failure)) from failure
        self._holds.pop(hold)
