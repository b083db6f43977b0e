"""Keeps and releases allocations that belong to no attempt.

After an attempt has finished, its allocations are kept for a short time with their agents. Another attempt
with the same needs on the same nodes can adopt them. It then waits neither for the cluster nor for the start
of agents. This state is only in memory: after a restart, the service releases all allocations that belong to
no recorded attempt.
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
from trainshed_cluster.remote.cluster import AllocationName, ClusterUnavailable, NodeNeed
from trainshed_cluster.remote.gang import Gang, GangRecord, allocation_name
from trainshed_cluster.remote.replica_slot import agent_key

log = logging.getLogger(__name__)

_MIN_KEEP_SECONDS = 2.0
"""Minimum seconds for which allocations are kept. Within this time, the scheduler places a retry of the job
or the next job in the queue."""
_CHECK_INTERVAL = 0.5
"""Seconds between two checks whether an idle allocation is still usable."""
_CLEANUP_TIMEOUT = 10.0
"""Maximum seconds that agents have to remove the files of a finished attempt."""
_RETRY_INTERVAL = 5.0
"""Seconds between two attempts to release an allocation."""


class IdleAllocation(Struct, frozen=True, eq=False):
    """An allocation that belongs to no attempt, with its agents."""

    name: AllocationName
    needs: tuple[NodeNeed, ...]
    #: One agent for each node of the allocation. An attempt can only adopt the allocation if all agents
    #: exist.
    agents: tuple[AgentHandle, ...]

    def is_on(self, nodes: Collection[str]) -> bool:
        return any(need.node in nodes for need in self.needs)

    @property
    def is_usable(self) -> bool:
        return all(agent.is_connected for agent in self.agents)


class IdleAllocations:
    """The allocations that belong to no attempt. Failed releases are retried until the cluster responds."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._attempts = agents.attempts
        self._cluster = agents.cluster
        self._nodes = agents.nodes
        self._options = agents.options
        self._idle: list[IdleAllocation] = []
        #: Allocations that are being assigned to an attempt. The assignment is not stored yet.
        self._being_adopted: set[IdleAllocation] = set()
        #: Allocations that are being released, each with its task.
        self._releasing: dict[IdleAllocation, asyncio.Task[None]] = {}
        self._tasks = Crew()

    async def retire(self, gang: Gang) -> None:
        """Keep or release the allocations of a finished attempt, whose record was deleted. Raises
        EngineUnavailable if the cluster does not respond. The releases are then retried in the background."""
        seconds = 0.0
        # With the options `anywhere` and `apart`, no later attempt could adopt an allocation, because the
        # cluster chooses the nodes or each replica has its own allocation.
        if not (self._options.anywhere or self._options.apart):
            expected = {
                agent_key(index, need.node) for index, needs in gang.record.needs.items() for need in needs
            }
            is_old = any(
                allocation_name(self._options.identity, gang.record, index) in self._cluster.report().old
                for index in gang.record.needs
            )
            # Do not keep the allocation if the setting `lease` has changed, because its agents have a
            # different lease than new attempts.
            is_old |= gang.record.lease != self._options.lease
            if gang.agents.keys() == expected and not is_old and await _make_idle(gang):
                seconds = max(self._options.keep, _MIN_KEEP_SECONDS)
        allocations = [self.detach(gang, gang.record, index) for index in gang.record.needs]
        for allocation in allocations:
            if seconds:
                self._idle.append(allocation)
                self._tasks.begin(self._expire(allocation, seconds), f"keeping {allocation.name}")
            else:
                self.release(allocation)
        if not seconds:
            await asyncio.gather(*map(self._wait_released, allocations))

    def detach(self, gang: Gang, record: GangRecord, index: int) -> IdleAllocation:
        """Remove an allocation and its agents from an attempt, and return them. `record`: a record of the
        attempt that contains the allocation."""
        agents = tuple(agent for agent in gang.agents.values() if agent.allocation_index == index)
        for agent in agents:
            del gang.agents[agent_key(index, agent.node)]
        name = allocation_name(self._options.identity, record, index)
        return IdleAllocation(name, record.needs[index], agents)

    def release(self, allocation: IdleAllocation) -> None:
        """Release an allocation in the background. Failures are retried."""
        self._releasing[allocation] = joined(self._release_once(allocation))
        self._tasks.begin(self._retry_release(allocation), f"releasing {allocation.name}")

    async def adopt(self, gang: Gang) -> None:
        """Let an attempt adopt the idle allocations that match its needs. Also release idle allocations on
        nodes that the attempt needs but does not adopt. Raises EngineUnavailable."""
        occupied = {agent.allocation_index for agent in gang.agents.values()}
        adoptable: dict[int, IdleAllocation] = {}
        fresh: set[str] = set()
        for index, needs in gang.record.needs.items():
            if index in occupied:
                continue
            if idle := self._pop_matching(needs):
                adoptable[index] = idle
            else:
                fresh.update(need.node for need in needs)
        if adoptable:
            await self._transfer(gang, adoptable)
        for allocation in (*self._idle, *self._releasing):
            if allocation.is_on(fresh):
                await self._wait_released(allocation)

    async def _transfer(self, gang: Gang, adoptable: Mapping[int, IdleAllocation]) -> None:
        starts = {
            agent_key(index, agent.node): agent.name.rpartition("/")[2]
            for index, idle in adoptable.items()
            for agent in idle.agents
        }
        allocations = {index: idle.name for index, idle in adoptable.items()}
        self._being_adopted.update(adoptable.values())
        try:
            async with self._attempts.lock(gang.key):
                record = msgspec.structs.replace(
                    gang.record,
                    adopted_names=gang.record.adopted_names | allocations,
                    agents=gang.record.agents | starts,
                )
                await self._attempts.write(gang, record)
        except BaseException:
            for idle in adoptable.values():
                self.release(idle)
            raise
        finally:
            self._being_adopted.difference_update(adoptable.values())
        await asyncio.gather(
            *(self._adopt(gang, agent, index) for index, idle in adoptable.items() for agent in idle.agents)
        )

    async def _adopt(self, gang: Gang, agent: AgentHandle, index: int) -> None:
        """Assign an idle agent to an attempt that is already recorded. If the agent does not confirm the
        order, revoke its credential."""
        agent.job_uid, agent.attempt, agent.allocation_index = *gang.key, index
        gang.agents[agent_key(index, agent.node)] = agent
        sizes = await self._agents.sizes(gang, agent)
        agent.is_idle = False
        try:
            await agent.call(messages.Adopt(job_uid=agent.job_uid, attempt=agent.attempt, sizes=sizes))
        except (EngineUnavailable, LaunchRejected):
            self._agents.give_up(agent)

    def names(self) -> set[AllocationName]:
        """Return the names of all allocations that are idle, being adopted, or being released."""
        return {allocation.name for allocation in (*self._idle, *self._being_adopted, *self._releasing)}

    async def close(self) -> None:
        """Release all allocations. Afterwards, `names` returns the allocations that could not be released."""
        await asyncio.gather(
            *(self._wait_released(allocation) for allocation in (*self._idle, *self._releasing)),
            return_exceptions=True,
        )
        await self._tasks.close()

    def _pop_matching(self, needs: Collection[NodeNeed]) -> IdleAllocation | None:
        """Remove an idle allocation whose needs are equal to `needs`, and return it; None = none exists."""
        expected = frozenset(needs)
        for allocation in self._idle:
            if allocation.agents and allocation.is_usable and frozenset(allocation.needs) == expected:
                self._idle.remove(allocation)
                return allocation
        return None

    async def _expire(self, allocation: IdleAllocation, seconds: float) -> None:
        until = time.monotonic() + seconds
        while allocation in self._idle and (left := until - time.monotonic()) > 0:
            if not allocation.is_usable or allocation.is_on(self._nodes.not_up()):
                break
            await asyncio.sleep(min(left, _CHECK_INTERVAL))
        if allocation in self._idle:
            self._idle.remove(allocation)
            self.release(allocation)

    async def _retry_release(self, allocation: IdleAllocation) -> None:
        while allocation in self._releasing:
            try:
                await self._wait_released(allocation)
            except EngineUnavailable:
                await asyncio.sleep(_RETRY_INTERVAL)

    async def _wait_released(self, allocation: IdleAllocation) -> None:
        """Wait until an attempt to release an allocation has finished. Raises EngineUnavailable if the
        attempt failed, because the cluster did not respond."""
        if allocation in self._idle:
            self._idle.remove(allocation)
            self.release(allocation)
        if task := self._releasing.get(allocation):
            if task.done():
                task = self._releasing[allocation] = joined(self._release_once(allocation))
            await asyncio.shield(task)

    async def _release_once(self, allocation: IdleAllocation) -> None:
        try:
            await self._cluster.require_reachable(allocation.name)
            await asyncio.gather(*(self._agents.dismiss(agent) for agent in allocation.agents))
            await self._cluster.release(allocation.name)
        except ClusterUnavailable as failure:
            raise EngineUnavailable(str(failure)) from failure
        self._releasing.pop(allocation)


async def _make_idle(gang: Gang) -> bool:
    """Let the agents of a finished gang remove the gang's files and become idle. Returns False if an agent
    cannot become idle."""
    agents = tuple(gang.agents.values())
    if not all(agent.is_connected for agent in agents):
        return False
    try:
        async with asyncio.timeout(_CLEANUP_TIMEOUT):
            await asyncio.gather(*(agent.call(messages.Idle()) for agent in agents))
    except (EngineUnavailable, LaunchRejected, TimeoutError) as failure:
        log.info("job %s: its allocations are not kept: %s", gang.record.job_uid, failure)
        return False
    for agent in agents:
        agent.is_idle = True
        # Revoke the agent's access to content. The next attempt grants access to the content that it needs.
        agent.granted.clear()
    return all(agent.is_connected for agent in agents)
