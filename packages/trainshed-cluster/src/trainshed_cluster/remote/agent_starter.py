"""Starts agents: acquires the allocations of an attempt, prepares the input of the agents, and starts the
agents on the cluster."""

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from trainshed.engines.port import EngineUnavailable, StartFailed
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.agents import Agents
from trainshed_cluster.remote.cluster import AgentEnded, Allocation, ClusterUnavailable
from trainshed_cluster.remote.failed_starts import FailedStarts, delay_of_start, start_failure_message
from trainshed_cluster.remote.gang import Gang, GangRecord, allocation_name, displaced_requests
from trainshed_cluster.remote.needs import drop_unused_needs
from trainshed_cluster.remote.placement import Placement
from trainshed_cluster.remote.replica_slot import SlotTrigger, agent_key

_MAX_VALIDITY = 400 * 86400.0
"""Maximum validity of an agent's credential in seconds. The service revokes a credential earlier, when the
agent's allocation ends."""


class AgentStarter:
    """Starts the agents of gangs."""

    def __init__(self, agents: Agents, placement: Placement) -> None:
        self._agents = agents
        self._placement = placement
        self._attempts = agents.attempts
        self._cluster = agents.cluster
        self._nodes = agents.nodes
        self._options = agents.options

    async def new_agents(self, gang: Gang, missing: Iterable[tuple[int, str]]) -> list[AgentHandle]:
        """Create the handles of agents at the given (allocation number, node) pairs, and record the agents.
        The new agents replace agents that have ended, together with their programs. Raises EngineUnavailable
        if the record cannot be stored."""
        async with self._attempts.lock(gang.key):
            starts = {agent_key(index, node): secrets.token_hex(4) for index, node in missing}
            # The new agents have not allocated any slots (directories and addresses) for replicas yet.
            replica_slots = tuple(
                gang.fire(slot, SlotTrigger.AGENT_REPLACED) if slot.agent_key in starts else slot
                for slot in gang.record.replica_slots
            )
            record = msgspec.structs.replace(
                gang.record, agents=gang.record.agents | starts, replica_slots=replica_slots
            )
            await self._attempts.write(gang, record)
            fresh = [
                self._agents.add(gang, index, node, starts[agent_key(index, node)]) for index, node in missing
            ]
        for agent in fresh:
            agent.is_starting = True
        return fresh

    async def start_agents(
        self, gang: Gang, index: int, allocation: Allocation | None, agents: Sequence[AgentHandle]
    ) -> None:
        """Start agents on an allocation. If `allocation` is None, acquire the allocation first. Raises
        EngineUnavailable, ClusterRefused, ClusterUnavailable."""
        here = {agent.node for agent in agents}
        try:
            if allocation is None:
                name = allocation_name(self._options.identity, gang.record, index)
                needs = [need for need in gang.record.needs[index] if need.node in here]
                allocation = await self._cluster.acquire(name, needs)
            if left := here - set(allocation.nodes):
                await self._move_displaced(gang, index, allocation)
                raise ClusterUnavailable(
                    f"the allocation {allocation.name} no longer includes {', '.join(sorted(left))}"
                )
            inputs = await asyncio.to_thread(self._inputs, gang.record, agents)
            await asyncio.gather(*map(partial(self._start, allocation), agents, inputs))
        except AgentEnded as failure:
            for agent in agents:
                self._agents.give_up_start(gang, agent, str(failure))
            raise

    async def _move_displaced(self, gang: Gang, index: int, allocation: Allocation) -> None:
        """Request separate allocations for replicas whose nodes the cluster has removed from an allocation.
        Slurm removes failed nodes from allocations. Such a node may run again later."""
        async with self._attempts.lock(gang.key):
            requests = displaced_requests(gang, index, allocation.nodes)
            moved = self._placement.move(gang, requests)
            record = drop_unused_needs(moved, index, allocation.nodes)
            if all(slot.is_vacant or slot.allocation_index != index for slot in record.replica_slots):
                await self._cluster.release(allocation.name)
            await self._attempts.write(gang, record)

    async def require_startable(self, gang: Gang, missing: Iterable[tuple[int, str]]) -> None:
        """Wait until agents may be started at the given (allocation number, node) pairs after failed starts.

        Raises:
            EngineUnavailable: The node is at fault and is quarantined from now on.
            StartFailed: The node is not at fault, but the maximum number of starts is reached.
        """
        longest: tuple[float, str, FailedStarts] | None = None
        for index, node in missing:
            failed = gang.failed_starts.get(agent_key(index, node))
            if failed is None:
                continue
            pause = failed.pause(self._options.start_intervals)
            if pause is None:
                raise await self._no_more(gang, index, node, failed)
            if longest is None or pause > longest[0]:
                longest = pause, node, failed
        if longest is not None:
            pause, node, failed = longest
            self._attempts.report_delay(gang, delay_of_start(node, failed, pause))
            await asyncio.sleep(pause)

    async def _no_more(
        self, gang: Gang, index: int, node: str, failed: FailedStarts
    ) -> EngineUnavailable | StartFailed:
        gang.failed_starts.pop(agent_key(index, node))
        why = start_failure_message(node, failed)
        image = gang.image_of(index, node)
        if self._agents.is_node_at_fault(node, image):
            self._nodes.quarantine(node, why)
            return EngineUnavailable(why)
        where = f"the container image {image}" if image else "the engine's settings"
        return StartFailed(
            f"{why}. There is no evidence that the node is at fault. Check {where}, and run "
            "`trainshed doctor`"
        )

    def _inputs(self, record: GangRecord, agents: Sequence[AgentHandle]) -> list[bytes]:
        """Return the data for the standard input of each agent's process. Blocks, because it creates
        certificates and reads the agents' code. Raises EngineUnavailable if the cluster no longer lists an
        agent's node."""
        return [
            self._options.command(agent.node).parcel(messages.write_document(self._document(record, agent)))
            for agent in agents
        ]

    async def _start(self, allocation: Allocation, agent: AgentHandle, stdin: bytes) -> None:
        """Start an agent on its allocation. Raises ClusterUnavailable if the cluster does not start it."""
        try:
            argv = self._options.command(agent.node).argv
            await self._cluster.start_agent(allocation, agent.node, argv, stdin)
        finally:
            agent.is_starting = False
            if not agent.is_connected:
                agent.disconnected_at = agent.last_heard = time.monotonic()

    def _document(self, record: GangRecord, agent: AgentHandle) -> messages.AgentDocument:
        reports = self._cluster.report().nodes
        report = next((report for report in reports if report.node.name == agent.node), None)
        if report is None:
            raise EngineUnavailable(f"the cluster no longer lists node {agent.node}")
        return self._options.agent(
            credential=self._agents.hub.issue(agent.name, self._options.now() + _MAX_VALIDITY),
            job_uid=agent.job_uid,
            attempt=agent.attempt,
            node=agent.node,
            user=allocation_name(self._options.identity, record, agent.allocation_index).user or None,
            address=report.address,
            lease=record.lease,
        )
