"""Has gangs on known nodes start first: chooses those for which that can be done, and starts their agents
with what these begin at once (`first_start`)."""

import asyncio
from collections.abc import Sequence

import msgspec

from trainshed.core.lifecycle.replica_events import Loss
from trainshed.engines.launch.documents import identity
from trainshed.engines.remote.agent_handle import AgentHandle
from trainshed.engines.remote.agent_starter import AgentStarter, all_or_none
from trainshed.engines.remote.agents import Agents
from trainshed.engines.remote.attempts import Attempts
from trainshed.engines.remote.cluster import Hold, HoldEnd
from trainshed.engines.remote.first_start import FirstStart, choose_slots
from trainshed.engines.remote.gang import Gang, hold_name
from trainshed.engines.remote.known_nodes import KnownNodes
from trainshed.engines.remote.options import RemoteOptions
from trainshed.engines.remote.records import GangRecord
from trainshed.eventloop.background import Crew, joined


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
        self._tasks = Crew()

    async def close(self) -> None:
        await self._tasks.close()

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
        """Hold all parts and write the agents down, then start them, and with them programs, if those are
        known by then. Raises EngineUnavailable, ClusterRefused, ClusterUnavailable."""
        issuing = joined(asyncio.to_thread(self._starter.documents, gang.record, agents))
        holds: dict[int, Hold] = {}

        async def hold(part: int) -> None:
            holds[part] = await self._starter.hold(gang, part)

        async def write_down() -> None:
            async with self._attempts.lock(gang.key):
                await self._attempts.write(gang, gang.record)

        is_begun = False
        try:
            await all_or_none([write_down(), *(hold(part) for part in gang.record.parts)])
            documents = await issuing
            texts = [b""] * len(documents)
            if await first.is_ready() and await self._note(gang, first):
                is_begun = True
                texts = [first.text(document) for document in documents]
                for agent in agents:
                    agent.hosts = first.hosts()
            await all_or_none(
                self._starter.start(agent, holds[agent.part], document, text)
                for agent, document, text in zip(agents, documents, texts, strict=True)
            )
            if is_begun:
                await write_down()
        except BaseException as failure:
            for agent in agents:
                if not agent.is_started:
                    # Nobody would wait for it in vain.
                    self._agents.give_up(agent)
                    if is_begun:
                        # What it may have begun has ended with it, and is not begun again under its number.
                        end = HoldEnd(Loss.AGENT_LOST, f"its agent was not started: {failure}")
                        self._tasks.begin(self._agents.lose(agent, end), "noting what is lost")
            raise
        finally:
            issuing.cancel()

    async def _note(self, gang: Gang, first: FirstStart) -> bool:
        """Keep in mind what is about to be begun. False: it may not be. It is written down when agents have
        been started: one that this service did not start before it was killed has begun nothing, and its
        replicas are none of those that were lost."""
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
