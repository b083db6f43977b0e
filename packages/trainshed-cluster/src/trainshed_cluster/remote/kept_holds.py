"""Keeps the holds of ended attempts for a short while with their agents: an attempt with the same needs on
the same nodes adopts them, and waits neither for the cluster nor for an agent's start."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from trainshed.core.lifecycle.replica_events import ReplicaExited
from trainshed.engines.port import EngineUnavailable, Node
from trainshed.eventloop.background import Crew, joined
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.agents import Agents
from trainshed_cluster.remote.attempts import Attempts
from trainshed_cluster.remote.cluster import Cluster, ClusterUnavailable, HoldName, NodeNeed
from trainshed_cluster.remote.gang import Gang, hold_name
from trainshed_cluster.remote.nodes import ClusterNodes
from trainshed_cluster.remote.options import RemoteOptions
from trainshed_cluster.remote.records import place

log = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0
"""For which the nodes of an attempt that failed are kept for the next one, whatever is kept else."""
_NEXT_SECONDS = 1.0
"""For which those of any other attempt are: the job that is next in the queue is placed within that."""
_LOOK = 0.5
"""Seconds between two looks at whether what is kept is in somebody's way."""
_PAUSE = 5.0
"""Seconds after which a hold is given back again that could not be."""


class KeptHold(Struct, frozen=True, eq=False):
    """A hold whose attempt is over, with its agents."""

    name: HoldName
    needs: tuple[NodeNeed, ...]
    #: One agent on each of its nodes.
    agents: tuple[AgentHandle, ...]
    #: The ended attempt. Its record stays until the hold is adopted or given back, so that a restarted
    #: service finds the hold and gives it back.
    owner: Gang

    def is_on(self, nodes: Collection[str]) -> bool:
        return any(need.node in nodes for need in self.needs)


class KeptHolds:
    """The kept holds. They are given back when their time is over or others need their resources."""

    def __init__(
        self,
        attempts: Attempts,
        agents: Agents,
        cluster: Cluster,
        nodes: ClusterNodes,
        options: RemoteOptions,
    ) -> None:
        self._attempts = attempts
        self._agents = agents
        self._cluster = cluster
        self._nodes = nodes
        self._options = options
        self._holds: list[KeptHold] = []
        #: Holds that are being given back, each with the task that does so.
        self._leaving: dict[KeptHold, asyncio.Task[None]] = {}
        self._tasks = Crew()

    async def keep(self, gang: Gang) -> bool:
        """Keep the holds of an attempt that is over and recorded as such. Returns False if they are to be
        given back instead."""
        if self._options.anywhere or self._options.apart:
            # The cluster chooses the nodes of each attempt, or programs have the place to themselves.
            return False
        wanted = {
            place(part, need.node) for part, some in gang.record.parts.items() for need in some
        }
        if gang.agents.keys() != wanted or not await self._agents.rest(gang):
            return False
        del self._attempts.gangs[gang.key]
        # A job whose program failed may be retried at once.
        exits = [end.exit for end in gang.ends.values() if isinstance(end, ReplicaExited)]
        failed = any(
            not exit_record.stopped and exit_record.exit_code != 0 for exit_record in exits
        )
        seconds = max(self._options.keep, _RETRY_SECONDS if failed else _NEXT_SECONDS)
        for part, some in gang.record.parts.items():
            agents = tuple(gang.agents[place(part, need.node)] for need in some)
            name = hold_name(self._options.identity, gang.record, part)
            self._hold(KeptHold(name, some, agents, gang), seconds)
        return True

    async def adopt(self, gang: Gang) -> None:
        """Have an attempt adopt the kept holds that fit, and give back those that are in the way of its other
        needs. Raises EngineUnavailable."""
        there = {agent.part for agent in gang.agents.values()}
        taken: dict[int, KeptHold] = {}
        for part, some in gang.record.parts.items():
            if part not in there and (kept := self._take(some)):
                taken[part] = kept
        if taken:
            await self._hand_over(gang, taken)
        fresh = (
            need.node
            for part, some in gang.record.parts.items()
            if part not in gang.record.holds
            for need in some
        )
        for node in dict.fromkeys(fresh):
            await self._free_capacity(node)

    async def _hand_over(self, gang: Gang, taken: Mapping[int, KeptHold]) -> None:
        starts = {
            place(part, agent.node): agent.name.rpartition("/")[2]
            for part, kept in taken.items()
            for agent in kept.agents
        }
        holds = {part: kept.name for part, kept in taken.items()}
        try:
            async with self._attempts.lock(gang.key):
                record = msgspec.structs.replace(
                    gang.record,
                    holds=gang.record.holds | holds,
                    agents=gang.record.agents | starts,
                )
                await self._attempts.write(gang, record)
        except BaseException:
            for kept in taken.values():
                self._hold(kept, 0.0)
            raise
        await asyncio.gather(
            *(
                self._agents.adopt(gang, agent, part)
                for part, kept in taken.items()
                for agent in kept.agents
            )
        )
        owners = {kept.owner.key: kept for kept in taken.values()}
        self._tasks.begin(self._settle_all(owners.values()), "forgetting who had what was kept")

    def names(self) -> set[HoldName]:
        """Return the names of all holds that are kept or being given back."""
        return {hold.name for hold in (*self._holds, *self._leaving)}

    async def give_back_on(self, nodes: Collection[str]) -> None:
        """Give back all kept holds on any of those nodes, as far as the cluster answers."""
        for hold in (*self._holds, *self._leaving):
            if hold.is_on(nodes):
                with contextlib.suppress(EngineUnavailable):
                    await self._leave(hold)

    async def close(self) -> None:
        """Give all holds back, as far as the cluster answers: `names` are those that it did not take."""
        await asyncio.gather(
            *(self._leave(hold) for hold in (*self._holds, *self._leaving)), return_exceptions=True
        )
        await self._tasks.close()

    def _hold(self, hold: KeptHold, seconds: float) -> None:
        """Keep a hold for so many seconds."""
        self._holds.append(hold)
        self._tasks.begin(self._expire(hold, seconds), f"keeping {hold.name}")

    def _take(self, needs: Collection[NodeNeed]) -> KeptHold | None:
        """Remove and return a kept hold of exactly these needs whose agents are all connected."""
        wanted = frozenset(needs)
        for hold in self._holds:
            if frozenset(hold.needs) == wanted and all(agent.is_connected for agent in hold.agents):
                self._holds.remove(hold)
                return hold
        return None

    async def _settle_all(self, holds: Iterable[KeptHold]) -> None:
        for hold in holds:
            await self._settle(hold)

    async def _settle(self, hold: KeptHold) -> None:
        """Note that a hold was adopted or given back: once no hold of its owner is left, the owner's record
        is deleted."""
        if any(other.owner is hold.owner for other in (*self._holds, *self._leaving)):
            return
        try:
            await self._attempts.delete(hold.owner)
        except OSError as failure:
            # The next start finds the record, and gives the hold back again.
            log.warning("job %s: its record is not removed: %s", hold.name.job_uid, failure)

    async def _free_capacity(self, node: str) -> None:
        """Give back kept holds until what attempts have and request on the node fits beside the remaining
        ones."""
        here = self._nodes.by_name().get(node)
        while kept := [hold for hold in (*self._leaving, *self._holds) if hold.is_on((node,))]:
            parts = (gang.record.parts for gang in self._attempts.gangs.values())
            wanted = [some for held in parts for some in held.values()]
            needs = [need for some in (*wanted, *(hold.needs for hold in kept)) for need in some]
            if here is not None and fits(here, [need for need in needs if need.node == node]):
                return
            await self._leave(kept[0])

    async def _expire(self, hold: KeptHold, seconds: float) -> None:
        until = time.monotonic() + seconds
        while hold in self._holds and (left := until - time.monotonic()) > 0:
            if self._is_in_way(hold):
                break
            await asyncio.sleep(min(left, _LOOK))
        while hold in self._holds or hold in self._leaving:
            try:
                await self._leave(hold)
            except EngineUnavailable:
                await asyncio.sleep(_PAUSE)

    def _is_in_way(self, hold: KeptHold) -> bool:
        """Whether no attempt will adopt a hold, or others need its resources."""
        return (
            self._cluster.report().is_short
            or hold.is_on(self._nodes.not_up())
            or not all(agent.is_connected for agent in hold.agents)
        )

    async def _leave(self, hold: KeptHold) -> None:
        """Give a hold back, or wait until an earlier call has done so. Raises EngineUnavailable."""
        if hold in self._holds:
            self._holds.remove(hold)
        elif hold not in self._leaving:
            return
        task = self._leaving.get(hold)
        if task is None or task.done():
            task = self._leaving[hold] = joined(self._let_go(hold))
        await asyncio.shield(task)

    async def _let_go(self, hold: KeptHold) -> None:
        try:
            await self._cluster.require_answer(hold.name)
            await asyncio.gather(*(self._agents.dismiss(agent) for agent in hold.agents))
            await self._cluster.give_back(hold.name)
        except ClusterUnavailable as failure:
            raise EngineUnavailable(str(failure)) from failure
        del self._leaving[hold]
        await self._settle(hold)


def fits(node: Node, needs: Sequence[NodeNeed]) -> bool:
    """Whether a node has all of those resources free at once, besides what others have there. Pure."""
    others = node.others
    theirs = dict(others.accelerators)
    free = {kind: count - theirs.get(kind, 0) for kind, count in node.accelerators}
    wanted: dict[str, int] = {}
    for need in needs:
        if need.accelerators:
            wanted[need.accelerator] = wanted.get(need.accelerator, 0) + need.accelerators
    return (
        _sum(math.ceil(need.vcpus) for need in needs) <= node.vcpus - others.vcpus
        and _sum(need.memory_bytes for need in needs) <= node.memory_bytes - others.memory_bytes
        and all(count <= free.get(kind, 0) for kind, count in wanted.items())
    )


def _sum(amounts: Iterable[float]) -> float:
    return sum(max(1, amount) for amount in amounts)
