"""Has gangs on known nodes start first: chooses those for which that can be done, and starts their agents
with what these begin at once (`first_start`).

Where each agent has an address of its own (`RemoteOptions.apart`), slots are chosen when all processes are
there that are to be agents, and have said it.
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
    """Begins what `SlotMaker` then has confirmed by agents."""

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
        #: What notes that agents were not started.
        self._ending: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """All is noted."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    def choose(self, gang: Gang) -> None:
        """Choose the slots of a gang whose programs need not wait for agents; nothing if they have to."""
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
        """As `choose`, by what processes have said. False: they have not said enough."""
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
        """Ports of a node that others have."""
        return {
            slot.port
            for other in self._attempts.gangs.values()
            for slot in (*other.slots(), *(other.first.slots.values() if other.first else ()))
            if slot.node == node
        }

    def _may_start_first(self, record: GangRecord) -> bool:
        """All is new, and the service knows as much of it as agents would."""
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
            # Two agents on a node, of which neither knows what the other one gives out.
            or (len(places) != len({node for _, node in places}) and not options.apart)
        )

    async def start(self, gang: Gang, first: FirstStart, agents: Sequence[AgentHandle]) -> None:
        """Hold all parts and start the agents; once all of them are there, and all is written down, have them
        begin programs, if those are known by then. Raises EngineUnavailable, ClusterRefused,
        ClusterUnavailable: on a node that was not there nothing was begun, and may be under its number."""
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
                # No process waits for long for what it is to do: each is seen to as soon as it is there.
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
                # Before anybody tries again, who would find agents that are about to be given up. Whoever
                # cancels this may hold the lock that it takes.
                await asyncio.shield(ending)
            raise
        finally:
            making.cancel()
            for task in gathering.tasks():
                task.cancel()

    async def _hold_all(self, gang: Gang) -> dict[int, Hold]:
        """By part. Raises ClusterRefused, ClusterUnavailable."""
        holds: dict[int, Hold] = {}

        async def hold(part: int) -> None:
            holds[part] = await self._starter.hold(gang, part)

        await all_or_none(hold(part) for part in gang.record.parts)
        return holds

    async def _start_apart(
        self, gang: Gang, prepared: PreparedAgent, gathering: "_Gathering"
    ) -> None:
        """Hold the place of one, and start it there. Raises ClusterRefused, ClusterUnavailable."""
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
        """What each is given."""
        # The cluster is asked for the agents first: it makes their processes meanwhile.
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
        """All that follows from what they are given: as if all of it had begun. Raises EngineUnavailable."""
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
        """Give up agents that were not started, once it is noted what became of them. What those that were
        given anything may have begun has ended with them, and is not begun again under its number; the
        others' replicas are as they were `before`."""
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
        """What programs run in that nodes have been sent; None = one of them would have to be sent it."""
        library = self._options.library
        if library is None:
            return ()
        try:
            manifest = await library.manifest(named_by(first.plans))
        except (Refused, OSError):
            return None  # Whoever provides it says so.
        nodes = {seat.request.node for seat in gang.record.seats}
        has_all = all(self._known.has(node, manifest.units) for node in nodes)
        return manifest.units if has_all else None

    async def _note(self, gang: Gang, first: FirstStart) -> bool:
        """Keep in mind what is about to be begun. False: it may not be."""
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
    """Agents that are started together. `apart`: they wait for each other in what they are given, if at all;
    otherwise none may begin before all are there."""

    def __init__(self, count: int, *, apart: bool) -> None:
        #: What each is given.
        self.texts: asyncio.Task[dict[AgentHandle, bytes]] | None = None
        #: What follows from that is on the disk.
        self.written: asyncio.Task[None] | None = None
        #: What processes have said that are there.
        self.there: dict[AgentHandle, ProcessFacts] = {}
        #: Those that may begin.
        self.begun: set[AgentHandle] = set()
        self._count = count
        self._apart = apart
        self._any_there = asyncio.Event()
        #: All are there, or somebody never will be.
        self._decided = asyncio.Event()

    def tasks(self) -> list[asyncio.Task[Any]]:
        return [task for task in (self.texts, self.written) if task is not None]

    async def text(self, agent: AgentHandle, process: ProcessFacts) -> bytes:
        """What it is given. Raises what `texts` does."""
        if self._apart:
            self._came(agent, process)
        assert self.texts is not None, "agents are started after that"
        return (await asyncio.shield(self.texts))[agent]

    async def join(self, agent: AgentHandle) -> None:
        """It is there; wait until it may begin. Raises what `texts` and `written` do."""
        if not self._apart:
            self._came(agent, NOTHING_SAID)
            await self._decided.wait()
        assert self.written is not None, "agents are started after that"
        await asyncio.shield(self.written)
        self.begun.add(agent)

    async def complete(self, seconds: float) -> bool:
        """Wait until all are there; False: they are not so many seconds after the first of them, or never
        will be."""
        await self._any_there.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._decided.wait()
        return len(self.there) == self._count

    def give_up(self) -> None:
        """Somebody will not come."""
        self._any_there.set()
        self._decided.set()

    def _came(self, agent: AgentHandle, process: ProcessFacts) -> None:
        self.there[agent] = process
        self._any_there.set()
        if len(self.there) == self._count:
            self._decided.set()


class _Part(AgentInput):
    """One of them."""

    def __init__(self, gathering: _Gathering, prepared: PreparedAgent) -> None:
        self._gathering = gathering
        self._prepared = prepared

    async def parcel(self, process: ProcessFacts) -> bytes:
        text = await self._gathering.text(self._prepared.agent, process)
        return self._prepared.command.parcel(text, process.code)

    async def permission(self) -> None:
        await self._gathering.join(self._prepared.agent)
