"""Has gangs on known nodes start first: chooses those for which that can be done, and starts their agents
with what these begin at once (`first_start`)."""

import asyncio
from collections.abc import Collection, Sequence

import msgspec

from trainshed.core.lifecycle.replica_events import Loss
from trainshed.engines.launch.documents import identity
from trainshed.engines.remote import messages
from trainshed.engines.remote.agent_handle import AgentHandle
from trainshed.engines.remote.agent_starter import AgentStarter, PreparedAgent, all_or_none
from trainshed.engines.remote.agents import Agents
from trainshed.engines.remote.attempts import Attempts
from trainshed.engines.remote.cluster import AgentInput, Hold, HoldEnd
from trainshed.engines.remote.first_start import FirstStart, choose_slots
from trainshed.engines.remote.gang import Gang, hold_name
from trainshed.engines.remote.known_nodes import KnownNodes
from trainshed.engines.remote.options import RemoteOptions
from trainshed.engines.remote.records import GangRecord
from trainshed.eventloop.background import joined


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
        taken = {
            (slot.node, slot.port)
            for other in self._attempts.gangs.values()
            for slot in (*other.slots(), *(other.first.slots.values() if other.first else ()))
        }
        own = self._options.identity
        chosen = choose_slots(
            record.job_uid,
            [seat.request for seat in record.seats],
            known,
            identity=lambda node: f"{hold_name(own, record, parts[node])}/{node}",
            taken=taken,
        )
        gang.first = FirstStart(chosen, known)
        gang.chosen.set()

    def _may_start_first(self, record: GangRecord) -> bool:
        """All is new, and the service knows as much of it as agents would."""
        options = self._options
        places = {(seat.part, seat.request.node) for seat in record.seats}
        return not (
            record.stopped is not None
            or record.owner.user
            or options.anywhere
            or options.preflight
            or options.library is not None
            or any(seat.launched or seat.request.accelerators for seat in record.seats)
            # Two agents on a node, of which neither knows what the other one gives out.
            or len(places) != len({node for _, node in places})
        )

    async def start(self, gang: Gang, first: FirstStart, agents: Sequence[AgentHandle]) -> None:
        """Hold all parts and start the agents; once all of them are there, and all is written down, have them
        begin programs, if those are known by then. Raises EngineUnavailable, ClusterRefused,
        ClusterUnavailable: on a node that was not there nothing was begun, and may be under its number."""
        making = joined(asyncio.to_thread(self._starter.prepared, gang.record, agents))
        holds: dict[int, Hold] = {}

        async def hold(part: int) -> None:
            holds[part] = await self._starter.hold(gang, part)

        before, gathering = gang.record, None
        try:
            await all_or_none(hold(part) for part in gang.record.parts)
            prepared = await making
            texts = joined(self._texts(gang, first, prepared))
            gathering = _Gathering(len(prepared), texts, joined(self._write_down(gang, texts)))
            await all_or_none(
                self._starter.start(one, holds[one.agent.part], _Part(gathering, one))
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
            if gathering:
                gathering.written.cancel()
                gathering.texts.cancel()

    async def _texts(
        self, gang: Gang, first: FirstStart, prepared: Sequence[PreparedAgent]
    ) -> dict[AgentHandle, bytes]:
        """What each is given."""
        # The cluster is asked for the agents first: it makes their processes meanwhile.
        await asyncio.sleep(0)
        texts = dict.fromkeys((one.agent for one in prepared), b"")
        if await first.is_ready() and await self._note(gang, first):
            for one in prepared:
                one.agent.hosts = first.hosts()
                texts[one.agent] = first.text(one.document)
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
        gathering: "_Gathering | None",
        why: str,
    ) -> None:
        """Give up agents that were not started, once it is noted what became of them. What those that were
        given anything may have begun has ended with them, and is not begun again under its number; the
        others' replicas are as they were `before`."""
        begun: Collection[AgentHandle] = ()
        if gathering is not None:
            await asyncio.gather(gathering.texts, gathering.written, return_exceptions=True)
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
    """Agents that are started together: none may begin before all are there. `texts`: what each is given.
    `written`: what follows from that is on the disk."""

    def __init__(
        self,
        count: int,
        texts: asyncio.Task[dict[AgentHandle, bytes]],
        written: asyncio.Task[None],
    ) -> None:
        self.texts = texts
        self.written = written
        #: Those that may begin.
        self.begun: set[AgentHandle] = set()
        self._missing = count
        self._all_there = asyncio.Event()

    async def join(self, agent: AgentHandle) -> None:
        """It is there; wait until it may begin. Raises what `texts` and `written` do."""
        self._missing -= 1
        if not self._missing:
            self._all_there.set()
        await self._all_there.wait()
        await asyncio.shield(self.written)
        self.begun.add(agent)


class _Part(AgentInput):
    """One of them."""

    def __init__(self, gathering: _Gathering, prepared: PreparedAgent) -> None:
        self._gathering = gathering
        self._prepared = prepared

    async def parcel(self, has: str) -> bytes:
        texts = await asyncio.shield(self._gathering.texts)
        return self._prepared.command.parcel(texts[self._prepared.agent], has)

    async def permission(self) -> None:
        await self._gathering.join(self._prepared.agent)
