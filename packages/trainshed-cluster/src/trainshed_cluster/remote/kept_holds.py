"""Gives back the holds that no attempt has any more. Those of an ended attempt are kept for a short while
with their agents: an attempt with the same needs on the same nodes adopts them, and waits neither for the
cluster nor for an agent's start.

None of this is written down: a restarted service gives back all that it has no record of.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping

import msgspec
from msgspec import Struct

from trainshed.engines.port import EngineUnavailable, LaunchRejected
from trainshed.eventloop.background import Crew, joined
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.agents import Agents
from trainshed_cluster.remote.cluster import ClusterUnavailable, HoldName, NodeNeed
from trainshed_cluster.remote.gang import Gang, GangRecord, hold_name, place

log = logging.getLogger(__name__)

_LEAST_SECONDS = 2.0
"""For which the nodes of an attempt are kept at least: a retry, or the job that is next in the queue, is
placed within that."""
_LOOK = 0.5
"""Seconds between two looks at whether what is kept is of use."""
_RESTING_SECONDS = 10.0
"""That agents have to clean up after an attempt, before its nodes are kept."""
_PAUSE = 5.0
"""Seconds after which a hold is given back again that could not be."""


class KeptHold(Struct, frozen=True, eq=False):
    """A hold that no attempt has any more, with its agents."""

    name: HoldName
    needs: tuple[NodeNeed, ...]
    #: One agent on each of its nodes, if it is to be adopted.
    agents: tuple[AgentHandle, ...]

    def is_on(self, nodes: Collection[str]) -> bool:
        return any(need.node in nodes for need in self.needs)

    @property
    def is_usable(self) -> bool:
        return all(agent.is_connected for agent in self.agents)


class KeptHolds:
    """The kept holds, and those that are being given back, which is tried until the cluster answers."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._attempts = agents.attempts
        self._cluster = agents.cluster
        self._nodes = agents.nodes
        self._options = agents.options
        self._holds: list[KeptHold] = []
        #: Holds that are being written down as an attempt's.
        self._adopted: set[KeptHold] = set()
        #: Holds that are being given back, each with the task that does so.
        self._leaving: dict[KeptHold, asyncio.Task[None]] = {}
        self._tasks = Crew()

    async def let_go(self, gang: Gang) -> None:
        """Keep the holds of an attempt that is over and not written down any more, or give them back. Raises
        EngineUnavailable if the cluster does not answer; they are given back as soon as it does."""
        seconds = 0.0
        # Elsewhere the cluster chooses the nodes of each attempt, or programs have the place to themselves.
        if not (self._options.anywhere or self._options.apart):
            wanted = {
                place(part, need.node) for part, some in gang.record.parts.items() for need in some
            }
            is_old = any(
                hold_name(self._options.identity, gang.record, part) in self._cluster.report().old
                for part in gang.record.parts
            )
            # Agents of an earlier service may have another lease than attempts have now.
            is_old |= gang.record.lease != self._options.lease
            if gang.agents.keys() == wanted and not is_old and await _rest(gang):
                seconds = max(self._options.keep, _LEAST_SECONDS)
        holds = [self.taken_from(gang, gang.record, part) for part in gang.record.parts]
        for hold in holds:
            if seconds:
                self._holds.append(hold)
                self._tasks.begin(self._expire(hold, seconds), f"keeping {hold.name}")
            else:
                self.give_back(hold)
        if not seconds:
            await asyncio.gather(*map(self._leave, holds))

    def taken_from(self, gang: Gang, record: GangRecord, part: int) -> KeptHold:
        """Take the hold of a part from an attempt, with its agents there. `record`: of when it had that."""
        agents = tuple(agent for agent in gang.agents.values() if agent.part == part)
        for agent in agents:
            del gang.agents[place(part, agent.node)]
        name = hold_name(self._options.identity, record, part)
        return KeptHold(name, record.parts[part], agents)

    def give_back(self, hold: KeptHold) -> None:
        """Give a hold back, as soon as the cluster takes it."""
        self._leaving[hold] = joined(self._give_back(hold))
        self._tasks.begin(self._insist(hold), f"giving back {hold.name}")

    async def adopt(self, gang: Gang) -> None:
        """Have an attempt adopt the kept holds that fit, and give back those on its other nodes. Raises
        EngineUnavailable."""
        there = {agent.part for agent in gang.agents.values()}
        taken: dict[int, KeptHold] = {}
        fresh: set[str] = set()
        for part, some in gang.record.parts.items():
            if part in there:
                continue
            if kept := self._take(some):
                taken[part] = kept
            else:
                fresh.update(need.node for need in some)
        if taken:
            await self._hand_over(gang, taken)
        for hold in (*self._holds, *self._leaving):
            if hold.is_on(fresh):
                await self._leave(hold)

    async def _hand_over(self, gang: Gang, taken: Mapping[int, KeptHold]) -> None:
        starts = {
            place(part, agent.node): agent.name.rpartition("/")[2]
            for part, kept in taken.items()
            for agent in kept.agents
        }
        holds = {part: kept.name for part, kept in taken.items()}
        self._adopted.update(taken.values())
        try:
            async with self._attempts.lock(gang.key):
                record = msgspec.structs.replace(
                    gang.record, holds=gang.record.holds | holds, agents=gang.record.agents | starts
                )
                await self._attempts.write(gang, record)
        except BaseException:
            for kept in taken.values():
                self.give_back(kept)
            raise
        finally:
            self._adopted.difference_update(taken.values())
        await asyncio.gather(
            *(
                self._adopt(gang, agent, part)
                for part, kept in taken.items()
                for agent in kept.agents
            )
        )

    async def _adopt(self, gang: Gang, agent: AgentHandle, part: int) -> None:
        """Have a resting agent work for an attempt that is written down. If it cannot, it is given up."""
        agent.job_uid, agent.attempt, agent.part = *gang.key, part
        gang.agents[place(part, agent.node)] = agent
        sizes = await self._agents.sizes(gang, agent)
        agent.is_resting = False
        try:
            await agent.call(
                messages.Adopt(job_uid=agent.job_uid, attempt=agent.attempt, sizes=sizes)
            )
        except (EngineUnavailable, LaunchRejected):
            self._agents.give_up(agent)

    def names(self) -> set[HoldName]:
        """Return the names of all holds that are kept, being adopted or being given back."""
        return {hold.name for hold in (*self._holds, *self._adopted, *self._leaving)}

    async def close(self) -> None:
        """Give all holds back, as far as the cluster answers: `names` are those that it did not take."""
        await asyncio.gather(
            *(self._leave(hold) for hold in (*self._holds, *self._leaving)), return_exceptions=True
        )
        await self._tasks.close()

    def _take(self, needs: Collection[NodeNeed]) -> KeptHold | None:
        """Remove and return a kept hold of exactly these needs."""
        wanted = frozenset(needs)
        for hold in self._holds:
            if hold.agents and hold.is_usable and frozenset(hold.needs) == wanted:
                self._holds.remove(hold)
                return hold
        return None

    async def _expire(self, hold: KeptHold, seconds: float) -> None:
        until = time.monotonic() + seconds
        while hold in self._holds and (left := until - time.monotonic()) > 0:
            if not hold.is_usable or hold.is_on(self._nodes.not_up()):
                break
            await asyncio.sleep(min(left, _LOOK))
        if hold in self._holds:
            self._holds.remove(hold)
            self.give_back(hold)

    async def _insist(self, hold: KeptHold) -> None:
        while hold in self._leaving:
            try:
                await self._leave(hold)
            except EngineUnavailable:
                await asyncio.sleep(_PAUSE)

    async def _leave(self, hold: KeptHold) -> None:
        """Wait until a hold is given back. Raises EngineUnavailable if the cluster does not take it now."""
        if hold in self._holds:
            self._holds.remove(hold)
            self.give_back(hold)
        if task := self._leaving.get(hold):
            if task.done():
                task = self._leaving[hold] = joined(self._give_back(hold))
            await asyncio.shield(task)

    async def _give_back(self, hold: KeptHold) -> None:
        try:
            await self._cluster.require_answer(hold.name)
            await asyncio.gather(*(self._agents.dismiss(agent) for agent in hold.agents))
            await self._cluster.give_back(hold.name)
        except ClusterUnavailable as failure:
            raise EngineUnavailable(str(failure)) from failure
        self._leaving.pop(hold)


async def _rest(gang: Gang) -> bool:
    """Have the agents of a finished gang wait for another attempt. Returns False if one of them cannot."""
    agents = tuple(gang.agents.values())
    if not all(agent.is_connected for agent in agents):
        return False
    try:
        async with asyncio.timeout(_RESTING_SECONDS):
            await asyncio.gather(*(agent.call(messages.Rest()) for agent in agents))
    except (EngineUnavailable, LaunchRejected, TimeoutError) as failure:
        log.info("job %s: what it held is not kept: %s", gang.record.job_uid, failure)
        return False
    for agent in agents:
        agent.is_resting = True
        # Its next attempt grants it what that needs.
        agent.granted.clear()
    return all(agent.is_connected for agent in agents)
