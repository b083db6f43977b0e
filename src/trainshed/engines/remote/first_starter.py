"""Chooses the gangs whose programs can start before their agents, because their nodes are known, and starts
their agents with those programs (`first_start`).

Where each agent has its own address (`RemoteOptions.apart`), slots are chosen once all agents' processes
exist and have told theirs.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from trainshed.core.lifecycle.replica_events import Loss
from trainshed.core.names import ReplicaId
from trainshed.engines.launch.documents import identity
from trainshed.engines.port import Slot
from trainshed.engines.remote import messages
from trainshed.engines.remote.agent_handle import AgentHandle
from trainshed.engines.remote.agent_starter import AgentStarter, PreparedAgent, all_or_none
from trainshed.engines.remote.agents import Agents
from trainshed.engines.remote.attempts import Attempts
from trainshed.engines.remote.cluster import (
    NOTHING_SAID,
    AgentEnded,
    AgentInput,
    Hold,
    HoldEnd,
    ProcessFacts,
)
from trainshed.engines.remote.content.library import Refused, named_by
from trainshed.engines.remote.content.manifest import Unit
from trainshed.engines.remote.first_start import FirstStart, choose_slots
from trainshed.engines.remote.gang import Gang, hold_name
from trainshed.engines.remote.known_nodes import KnownNodes
from trainshed.engines.remote.messages import NodeFacts
from trainshed.engines.remote.options import RemoteOptions
from trainshed.engines.remote.records import GangRecord
from trainshed.eventloop.background import joined

_TOGETHER = 15.0
"""Seconds for which processes of one gang wait for each other. Then each is given its document without
programs, long before it would give up (`kubernetes.build`)."""


class FirstStarter:
    """Starts first programs, which `SlotMaker` then has agents confirm."""

    def __init__(
        self,
        attempts: Attempts,
        agents: Agents,
        starter: AgentStarter,
        options: RemoteOptions,
        *,
        known: KnownNodes,
    ) -> None:
        self._attempts = attempts
        self._agents = agents
        self._starter = starter
        self._options = options
        self._known = known
        #: Tasks that note that agents were not started.
        self._ending: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait until everything is noted."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    def choose(self, gang: Gang) -> None:
        """Choose the slots of a gang whose programs need not wait for agents; do nothing for any other."""
        record = gang.record
        if gang.agents or not self._may_start_first(record):
            return
        parts = {seat.request.node: seat.part for seat in record.seats}
        known = {node: facts for node in parts if (facts := self._known.of(node))}
        if len(known) < len(parts):
            return
        if self._options.apart:
            gang.first = FirstStart()
            return
        slots: dict[ReplicaId, Slot] = {}
        for node, part in parts.items():
            hold = hold_name(self._options.identity, record, part)
            slots |= choose_slots(
                record.job_uid,
                [seat.request for seat in record.seats if seat.request.node == node],
                known[node],
                identity=f"{hold}/{node}",
                taken=self._taken(node),
            )
        slots = {seat.replica: slots[seat.replica] for seat in record.seats}
        gang.first = FirstStart()
        gang.first.choose(slots, {seat.replica: known[seat.request.node] for seat in record.seats})
        gang.chosen.set()

    def _choose_apart(
        self, gang: Gang, first: FirstStart, there: Mapping[AgentHandle, ProcessFacts]
    ) -> bool:
        """Choose slots by what the agents' processes have said. Returns False if they have not said
        enough."""
        slots: dict[ReplicaId, Slot] = {}
        facts: dict[ReplicaId, NodeFacts] = {}
        for agent, process in there.items():
            known = self._known.of(agent.node)
            if known is None or not process.address:
                return False
            hold = hold_name(self._options.identity, gang.record, agent.part)
            seats = tuple(gang.seats_of(agent))
            own = replace(known, address=process.address)
            slots |= choose_slots(
                gang.record.job_uid,
                [seat.request for seat in seats],
                own,
                identity=f"{hold}/{agent.node}",
                named=process.named,
            )
            facts |= {seat.replica: own for seat in seats}
        first.choose({seat.replica: slots[seat.replica] for seat in gang.record.seats}, facts)
        gang.chosen.set()
        return True

    def _taken(self, node: str) -> set[int]:
        """Return the ports of a node that are in use by other gangs."""
        return {
            slot.port
            for other in self._attempts.gangs.values()
            for slot in (*other.slots(), *(other.first.slots.values() if other.first else ()))
            if slot.node == node
        }

    def _may_start_first(self, record: GangRecord) -> bool:
        """Whether everything of the gang is new, and the service knows as much of its nodes as agents
        would."""
        options = self._options
        places = {(seat.part, seat.request.node) for seat in record.seats}
        return not (
            record.stopped is not None
            or record.owner.user
            or options.anywhere
            or options.preflight
            or (options.library is not None and not options.keeps_content)
            or any(seat.launched or seat.request.accelerators for seat in record.seats)
            or any(need.image for needs in record.parts.values() for need in needs)
            # Two agents on a node do not know each other's slots.
            or (len(places) != len({node for _, node in places}) and not options.apart)
        )

    async def start(self, gang: Gang, first: FirstStart, agents: Sequence[AgentHandle]) -> None:
        """Acquire all holds and start the agents; once all of them exist, and everything is written down,
        have them start the programs, if those are known by then. Raises EngineUnavailable, ClusterRefused,
        ClusterUnavailable: then incarnations on nodes whose agent did not come have not started, and may
        start later."""
        making = joined(asyncio.to_thread(self._starter.prepared, gang.record, agents))
        before, apart = gang.record, self._options.apart
        holds: Mapping[int, Hold] = {}
        gathering = _Gathering(len(agents), apart=apart)
        try:
            if not apart:
                holds = await self._hold_all(gang)
            prepared = await making
            gathering.texts = joined(self._texts(gang, first, prepared, gathering))
            gathering.written = joined(self._write_down(gang, gathering.texts))
            await all_or_none(
                # Each process is served as soon as it exists.
                self._start_apart(gang, one, gathering)
                if apart
                else self._starter.start(one, holds[one.agent.part], _Part(gathering, one))
                for one in prepared
            )
        except BaseException as failure:
            left = [agent for agent in agents if not agent.is_started]
            ending = joined(self._lose(gang, before, left, gathering, str(failure)))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
            if not isinstance(failure, asyncio.CancelledError):
                # Finished before another try, which would find agents that are about to be given up.
                # Shielded, because a caller that cancels this may hold the lock that it takes.
                await asyncio.shield(ending)
            raise
        finally:
            making.cancel()
            for task in gathering.tasks():
                task.cancel()

    async def _hold_all(self, gang: Gang) -> dict[int, Hold]:
        """Acquire all holds; return them by part. Raises ClusterRefused, ClusterUnavailable."""
        holds: dict[int, Hold] = {}

        async def hold(part: int) -> None:
            holds[part] = await self._starter.hold(gang, part)

        await all_or_none(hold(part) for part in gang.record.parts)
        return holds

    async def _start_apart(
        self, gang: Gang, prepared: PreparedAgent, gathering: "_Gathering"
    ) -> None:
        """Acquire the hold of one agent, and start it there. Raises ClusterRefused, ClusterUnavailable."""
        agent = prepared.agent
        try:
            hold = await self._starter.hold(gang, agent.part)
            await self._starter.start(prepared, hold, _Part(gathering, prepared))
        except AgentEnded as failure:
            self._agents.give_up_start(gang, agent, str(failure))
            raise

    async def _texts(
        self,
        gang: Gang,
        first: FirstStart,
        prepared: Sequence[PreparedAgent],
        gathering: "_Gathering",
    ) -> dict[AgentHandle, bytes]:
        """Make the input of each agent."""
        # The cluster is asked to start the agents first, which takes time.
        await asyncio.sleep(0)
        texts = dict.fromkeys((one.agent for one in prepared), b"")
        is_chosen = not self._options.apart or (
            await gathering.complete(_TOGETHER) and self._choose_apart(gang, first, gathering.there)
        )
        units = await self._units(gang, first) if is_chosen and await first.is_ready() else None
        if units is not None and await self._note(gang, first):
            for one in prepared:
                one.agent.hosts = first.hosts()
                replicas = [seat.replica for seat in gang.seats_of(one.agent)]
                texts[one.agent] = first.text(one.document, replicas, units)
        return {
            one.agent: messages.write_document(one.document, texts[one.agent]) for one in prepared
        }

    async def _write_down(self, gang: Gang, texts: asyncio.Task[dict[AgentHandle, bytes]]) -> None:
        """Write the records as if everything that the agents are given had started. Raises
        EngineUnavailable."""
        await asyncio.shield(texts)
        async with self._attempts.lock(gang.key):
            await self._attempts.write(gang, gang.record)

    async def _lose(
        self,
        gang: Gang,
        before: GangRecord,
        agents: Sequence[AgentHandle],
        gathering: "_Gathering",
        why: str,
    ) -> None:
        """Note what became of agents that were not started, and give them up. Programs of agents that were
        sent anything may have started; they ended with the agent, and their incarnations are not started
        again. The other agents' replicas are as `before`."""
        gathering.give_up()
        await asyncio.gather(*gathering.tasks(), return_exceptions=True)
        begun = gathering.begun
        async with self._attempts.lock(gang.key):
            record = gang.record
            for agent in agents:
                for seat in gang.seats_of(agent) if agent not in begun else ():
                    if (old := before.seat(seat.replica)) and seat.is_chosen:
                        record = record.with_seat(
                            msgspec.structs.replace(
                                seat,
                                slot=None,
                                is_chosen=False,
                                port=old.port,
                                launched=old.launched,
                                identity=old.identity,
                            )
                        )
            await self._attempts.write(gang, record)
        for agent in agents:
            told = "its agent was not started" if agent in begun else "its agent never came"
            await self._agents.lose(agent, HoldEnd(Loss.AGENT_LOST, f"{told}: {why}"))

    async def _units(self, gang: Gang, first: FirstStart) -> Sequence[Unit] | None:
        """Return the units that programs run in and nodes already have; None = one would have to be sent."""
        library = self._options.library
        if library is None:
            return ()
        try:
            manifest = await library.manifest(named_by(first.plans))
        except (Refused, OSError):
            return None  # `SlotMaker.provide` reports this.
        nodes = {seat.request.node for seat in gang.record.seats}
        has_all = all(self._known.has(node, manifest.units) for node in nodes)
        return manifest.units if has_all else None

    async def _note(self, gang: Gang, first: FirstStart) -> bool:
        """Note the programs as launched in memory. Returns False if one of them may not start."""
        async with self._attempts.lock(gang.key):
            record = gang.record
            for plan in first.plans:
                seat = record.seat(plan.replica)
                assert seat is not None
                if record.stopped is not None or plan.incarnation <= seat.forbidden:
                    return False
                slot = first.slots[plan.replica]
                record = record.with_seat(
                    msgspec.structs.replace(
                        seat,
                        slot=slot,
                        is_chosen=True,
                        port=slot.port,
                        launched=plan.incarnation,
                        identity=identity(plan),
                    )
                )
            gang.record = record
        return True


class _Gathering:
    """Agents that are started together. `apart`: they only wait for each other where their input says so;
    otherwise none may begin before all exist."""

    def __init__(self, count: int, *, apart: bool) -> None:
        #: The input of each agent.
        self.texts: asyncio.Task[dict[AgentHandle, bytes]] | None = None
        #: Writes the records that follow from it.
        self.written: asyncio.Task[None] | None = None
        #: What the existing processes have said of themselves.
        self.there: dict[AgentHandle, ProcessFacts] = {}
        #: Agents that may begin.
        self.begun: set[AgentHandle] = set()
        self._count = count
        self._apart = apart
        self._any_there = asyncio.Event()
        #: Set when all exist, or one will never come.
        self._decided = asyncio.Event()

    def tasks(self) -> list[asyncio.Task[Any]]:
        return [task for task in (self.texts, self.written) if task is not None]

    async def text(self, agent: AgentHandle, process: ProcessFacts) -> bytes:
        """Return an agent's input. Raises what `texts` raises."""
        if self._apart:
            self._came(agent, process)
        assert self.texts is not None, "agents are started after that"
        return (await asyncio.shield(self.texts))[agent]

    async def join(self, agent: AgentHandle) -> None:
        """Wait until an agent, which exists now, may begin. Raises what `texts` and `written` raise."""
        if not self._apart:
            self._came(agent, NOTHING_SAID)
            await self._decided.wait()
        assert self.written is not None, "agents are started after that"
        await asyncio.shield(self.written)
        self.begun.add(agent)

    async def complete(self, seconds: float) -> bool:
        """Wait until all exist. Returns False if one does not come within `seconds` of the first, or never
        will."""
        await self._any_there.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._decided.wait()
        return len(self.there) == self._count

    def give_up(self) -> None:
        """Note that an agent will not come."""
        self._any_there.set()
        self._decided.set()

    def _came(self, agent: AgentHandle, process: ProcessFacts) -> None:
        self.there[agent] = process
        self._any_there.set()
        if len(self.there) == self._count:
            self._decided.set()


class _Part(AgentInput):
    """The input of one of these agents."""

    def __init__(self, gathering: _Gathering, prepared: PreparedAgent) -> None:
        self._gathering = gathering
        self._prepared = prepared

    async def parcel(self, process: ProcessFacts) -> bytes:
        text = await self._gathering.text(self._prepared.agent, process)
        return self._prepared.command.parcel(text, process.code)

    async def permission(self) -> None:
        await self._gathering.join(self._prepared.agent)
