"""Holds whose attempt is over, kept for a short while with their agents: an attempt that needs the same on
the same nodes goes on with them, and waits neither for the cluster nor for an agent's start."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from trainshed.engines.port import EngineUnavailable
from trainshed.engines.remote.agent_handle import AgentHandle
from trainshed.engines.remote.cluster import HoldName, NodeNeed
from trainshed.engines.remote.gang import Gang
from trainshed.eventloop.background import Crew, joined

_PAUSE = 5.0
"""Seconds after which a hold is given back again that could not be."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptHold:
    """A hold that no attempt has now."""

    name: HoldName
    needs: tuple[NodeNeed, ...]
    #: One on each of its nodes.
    agents: tuple[AgentHandle, ...]
    #: Of which attempt it was kept, as the record's owner: a restart gives back what that one names.
    owner: Gang


class KeptHolds:
    """`give_back`: lets the agents of one end, and gives its nodes back; raises EngineUnavailable. `forget`:
    nothing of that owner is kept any more."""

    def __init__(
        self,
        give_back: Callable[[KeptHold], Awaitable[None]],
        forget: Callable[[Gang], Awaitable[None]],
    ) -> None:
        self._give_back = give_back
        self._forget = forget
        self._holds: list[KeptHold] = []
        #: Being given back, and whatever waits for that.
        self._leaving: dict[KeptHold, asyncio.Task[None]] = {}
        self._tasks = Crew()

    def keep(self, holds: Sequence[KeptHold], seconds: float) -> None:
        """Have them ready for so long."""
        self._holds += holds
        for hold in holds:
            self._tasks.begin(self._expire(hold, seconds), f"keeping {hold.name}")

    def take(self, needs: Collection[NodeNeed]) -> KeptHold | None:
        """One of nodes that have just that, with its agents connected; it is the caller's then."""
        wanted = frozenset(needs)
        for hold in self._holds:
            if frozenset(hold.needs) == wanted and all(one.is_connected for one in hold.agents):
                self._holds.remove(hold)
                return hold
        return None

    async def settle(self, hold: KeptHold) -> None:
        """An attempt that is written down has it, or nobody."""
        if not any(one.owner is hold.owner for one in (*self._holds, *self._leaving)):
            await self._forget(hold.owner)

    async def make_way(self, nodes: Collection[str]) -> None:
        """Give back what is kept on any of those nodes. Raises EngineUnavailable."""
        in_way = [
            hold
            for hold in (*self._holds, *self._leaving)
            if any(need.node in nodes for need in hold.needs)
        ]
        for hold in in_way:
            await self._leave(hold)

    async def close(self) -> None:
        """Give all back, as far as the cluster takes it."""
        await asyncio.gather(
            *(self._leave(hold) for hold in (*self._holds, *self._leaving)), return_exceptions=True
        )
        await self._tasks.close()

    async def _expire(self, hold: KeptHold, seconds: float) -> None:
        await asyncio.sleep(seconds)
        while hold in self._holds or hold in self._leaving:
            try:
                await self._leave(hold)
            except EngineUnavailable:
                await asyncio.sleep(_PAUSE)

    async def _leave(self, hold: KeptHold) -> None:
        """Whoever asks for it first gives it back; the others wait for that."""
        if hold in self._holds:
            self._holds.remove(hold)
        elif hold not in self._leaving:
            return
        task = self._leaving.get(hold)
        if task is None or task.done():
            task = self._leaving[hold] = joined(self._let_go(hold))
        await asyncio.shield(task)

    async def _let_go(self, hold: KeptHold) -> None:
        await self._give_back(hold)
        del self._leaving[hold]
        await self.settle(hold)
