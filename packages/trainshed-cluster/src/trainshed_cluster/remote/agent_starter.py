"""Starts agents: it acquires the holds of an attempt's parts, prepares the agents' input, and has the cluster
run them."""

import asyncio
import secrets
import time
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from trainshed.engines.port import EngineUnavailable, SlotRequest, StartFailed
from trainshed.eventloop.background import joined
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.agents import Agents
from trainshed_cluster.remote.cluster import AgentEnded, ClusterUnavailable, Hold
from trainshed_cluster.remote.gang import (
    FailedStarts,
    Gang,
    GangRecord,
    delay_of_start,
    hold_name,
    moved,
    no_more_starts,
    place,
    taken_out,
    without_needs,
)

_VALID = 400 * 86400.0
"""Seconds for which a credential is valid at most; it ends with its hold anyway."""


class AgentStarter:
    """Starts the agents of gangs."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._attempts = agents.attempts
        self._cluster = agents.cluster
        self._nodes = agents.nodes
        self._options = agents.options

    async def new_agents(self, gang: Gang, missing: Iterable[tuple[int, str]]) -> list[AgentHandle]:
        """Make the handles of agents that are about to be started at the given (part, node) places, instead
        of agents that are gone with their programs, and write them down. Raises EngineUnavailable."""
        async with self._attempts.lock(gang.key):
            starts = {place(part, node): secrets.token_hex(4) for part, node in missing}
            # The new agents have given out no slots yet.
            seats = tuple(
                msgspec.structs.replace(
                    seat, slot=None, ended=seat.ended if gang.is_live(seat) else seat.launched
                )
                if place(seat.part, seat.request.node) in starts
                else seat
                for seat in gang.record.seats
            )
            record = msgspec.structs.replace(
                gang.record, agents=gang.record.agents | starts, seats=seats
            )
            await self._attempts.write(gang, record)
            fresh = [
                self._agents.add(gang, part, node, starts[place(part, node)])
                for part, node in missing
            ]
        for agent in fresh:
            agent.is_starting = True
        return fresh

    async def start_part(
        self, gang: Gang, part: int, hold: Hold | None, agents: Sequence[AgentHandle]
    ) -> None:
        """Acquire a part's hold, unless it is held, and start agents there. Raises EngineUnavailable,
        ClusterRefused, ClusterUnavailable."""
        here = {agent.node for agent in agents}
        try:
            if hold is None:
                name = hold_name(self._options.identity, gang.record, part)
                some = [need for need in gang.record.parts[part] if need.node in here]
                hold = await self._cluster.acquire(name, some)
            if left := here - set(hold.nodes):
                await self._hold_anew(gang, part, hold)
                raise ClusterUnavailable(f"{hold.name} has {', '.join(sorted(left))} no more")
            inputs = await asyncio.to_thread(self._inputs, gang.record, agents)
            await asyncio.gather(*map(partial(self._start, hold), agents, inputs))
        except AgentEnded as failure:
            for agent in agents:
                self._agents.give_up_start(gang, agent, str(failure))
            raise

    def moved(self, record: GangRecord, requests: Sequence[SlotRequest]) -> GangRecord:
        """Return the record with those replicas on the requested nodes (`gang.moved`)."""
        ways = {"anywhere": self._options.anywhere, "apart": self._options.apart}
        return moved(record, requests, self._nodes.by_name(), **ways)

    async def _hold_anew(self, gang: Gang, part: int, hold: Hold) -> None:
        """Give replicas whose nodes the cluster has taken out of a hold, as Slurm does with one that fails,
        holds of their own, though the nodes may be up again."""
        async with self._attempts.lock(gang.key):
            requests = taken_out(gang, part, hold.nodes)
            record = without_needs(self.moved(gang.record, requests), part, hold.nodes)
            if all(seat.is_vacant or seat.part != part for seat in record.seats):
                await self._cluster.give_back(hold.name)
            await self._attempts.write(gang, record)

    async def require_startable(self, gang: Gang, missing: Iterable[tuple[int, str]]) -> None:
        """Wait until agents may be started at the given (part, node) places, if earlier ones there ended
        before they connected. Raises EngineUnavailable if the node is to blame, which is quarantined from now
        on, and StartFailed if no node is and there were enough tries."""
        longest: tuple[float, str, FailedStarts] | None = None
        for part, node in missing:
            failed = gang.failed_starts.get(place(part, node))
            if failed is None:
                continue
            pause = failed.pause(self._options.start_pauses)
            if pause is None:
                raise await self._no_more(gang, part, node, failed)
            if longest is None or pause > longest[0]:
                longest = pause, node, failed
        if longest is not None:
            pause, node, failed = longest
            self._attempts.report_delay(gang, delay_of_start(node, failed, pause))
            await asyncio.sleep(pause)

    async def _no_more(
        self, gang: Gang, part: int, node: str, failed: FailedStarts
    ) -> EngineUnavailable | StartFailed:
        gang.failed_starts.pop(place(part, node))
        why = no_more_starts(node, failed)
        image = gang.image_of(part, node)
        if self._agents.is_the_nodes(node, image):
            self._nodes.quarantine(node, why)
            return EngineUnavailable(why)
        where = f"the container image {image}" if image else "the engine's settings"
        return StartFailed(
            f"{why}. Nothing says that it is the node's fault: look at {where}, and at what "
            "`trainshed doctor` finds"
        )

    def _inputs(self, record: GangRecord, agents: Sequence[AgentHandle]) -> list[bytes]:
        """Return the standard input of each agent's process. Blocks: certificates are made, and the agents'
        code may have to be read. Raises EngineUnavailable."""
        return [
            self._options.command(agent.node).parcel(
                messages.write_document(self._document(record, agent))
            )
            for agent in agents
        ]

    async def _start(self, hold: Hold, agent: AgentHandle, stdin: bytes) -> None:
        """Start an agent. Raises ClusterUnavailable."""
        try:
            argv = self._options.command(agent.node).argv
            await self._cluster.start_agent(hold, agent.node, argv, stdin)
        finally:
            agent.is_starting = False
            if not agent.is_connected:
                agent.silent_since = agent.heard = time.monotonic()

    def _document(self, record: GangRecord, agent: AgentHandle) -> messages.AgentDocument:
        reports = self._cluster.report().nodes
        report = next((report for report in reports if report.node.name == agent.node), None)
        if report is None:
            raise EngineUnavailable(f"the cluster does not list node {agent.node} any more")
        return self._options.agent(
            credential=self._agents.hub.issue(agent.name, self._options.now() + _VALID),
            job_uid=agent.job_uid,
            attempt=agent.attempt,
            node=agent.node,
            user=hold_name(self._options.identity, record, agent.part).user or None,
            address=report.address,
            lease=record.lease,
        )


async def all_or_none(some: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait until all are done. If one fails, cancel the others, wait for their ends, and raise its
    exception."""
    tasks = [joined(item) for item in some]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [item for item in outcomes if isinstance(item, BaseException)]
    for failure in sorted(failures, key=lambda item: isinstance(item, asyncio.CancelledError)):
        raise failure
