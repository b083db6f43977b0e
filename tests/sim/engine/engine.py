"""The engine port over a simulated world. It has no state: a new engine over the same world finds everything
again.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from tests.sim.engine.streams import JournalStreams
from tests.sim.engine.world import World
from trainshed.core.capacity import Node
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import StopNotice
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import Capabilities, EngineEvent, Fault, Slot, SlotRequest


class SimEngine:
    """An engine of a simulated `world`. `latency`: seconds of each call, by the loop's clock."""

    def __init__(self, world: World, latency: float = 0.0) -> None:
        self._world = world
        self._latency = latency
        self._events: asyncio.Queue[EngineEvent | None] = asyncio.Queue()

    def capabilities(self) -> Capabilities:
        return Capabilities(process_namespace=True, stable_hostname=True)

    @property
    def streams(self) -> JournalStreams:
        return JournalStreams(self._world.journals)

    async def start(self) -> None:
        self._world.attach(self._events.put_nowait)

    async def close(self) -> None:
        self._world.bus.detach()
        self._events.put_nowait(None)

    async def capacity(self) -> tuple[Node, ...]:
        return tuple(place.node for place in self._world.places.values())

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        await self._pass()
        return self._world.allocate(job_uid, attempt, requests)

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        await self._pass()
        self._world.launch(plans)

    async def stop(self, job_uid: JobUid, attempt: int, grace: int, notice: StopNotice | None = None) -> None:
        await self._pass()
        self._world.stop(job_uid, attempt, grace)

    async def stop_replica(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        grace: int,
        *,
        notice: StopNotice | None = None,
    ) -> None:
        await self._pass()
        self._world.stop_replica(job_uid, attempt, replica, incarnation, grace)

    async def inject(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, fault: Fault
    ) -> None:
        await self._pass()
        self._world.inject(job_uid, attempt, replica, incarnation, fault)

    async def allocations(self) -> tuple[tuple[JobUid, int], ...]:
        await self._pass()
        return self._world.allocations()

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        await self._pass()
        self._world.release(job_uid, attempt)

    async def watch(self) -> AsyncIterator[EngineEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    async def _pass(self) -> None:
        await asyncio.sleep(self._latency)
