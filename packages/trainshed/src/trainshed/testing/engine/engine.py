"""The engine port over a simulated world. It has no state: a new engine over the same world finds everything
again."""

import asyncio
import signal
from collections.abc import AsyncIterator, Collection, Sequence

from trainshed.core.launch import LaunchPlan
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.conformance.lab import LabWithNodes, OnTerm, Program
from trainshed.engines.port import Capabilities, Engine, EngineEvent, Fault, Node, Slot, SlotRequest
from trainshed.testing.engine import programs
from trainshed.testing.engine.clock import Clock
from trainshed.testing.engine.programs import Life, Script
from trainshed.testing.engine.streams import JournalStreams
from trainshed.testing.engine.world import SECOND, Times, World


class SimEngine:
    """An engine of a simulated `world`. `latency`: seconds that each call takes, by the loop's clock."""

    def __init__(self, world: World, latency: float = 0.0) -> None:
        self._world = world
        self._latency = latency
        self._events: asyncio.Queue[EngineEvent | None] = asyncio.Queue()

    def capabilities(self) -> Capabilities:
        return Capabilities(
            enforced_memory=True,
            oom_verdict=True,
            process_namespace=True,
            stable_hostname=True,
            addresses="loopback",
            durable=True,
        )

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

    async def stop(self, job_uid: JobUid, attempt: int, grace: int) -> None:
        await self._pass()
        self._world.stop(job_uid, attempt, grace)

    async def stop_replica(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, grace: int
    ) -> None:
        await self._pass()
        self._world.stop_replica(job_uid, attempt, replica, incarnation, grace)

    async def inject(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        fault: Fault,
    ) -> None:
        await self._pass()
        self._world.inject(job_uid, attempt, replica, incarnation, fault)

    async def drop_reducers(
        self, job_uid: JobUid, attempt: int, reducers: Collection[ReplicaId]
    ) -> None:
        await self._pass()
        self._world.drop_reducers(job_uid, attempt, reducers)

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


_MOMENT = SECOND // 20
_TICKS = 10_000
"""More than any program of the suite prints."""


class SimLab(LabWithNodes):
    def __init__(self) -> None:
        self._scripts: dict[Life, Script] = {}
        #: Which lost reducers programs wait for.
        self._awaited: dict[Life, frozenset[str]] = {}
        nodes = [Node(f"node-{n}", 64, 1 << 40) for n in range(2)]
        times = Times(lease=2 * SECOND, fence=6 * SECOND, start=_MOMENT)
        self._world = World(
            Clock(1000 * SECOND), nodes, self._scripts.__getitem__, times=times, strict=True
        )

    def engine(self) -> Engine:
        return SimEngine(self._world)

    def given(self, plan: LaunchPlan, program: Program) -> LaunchPlan:
        life = Life(plan.job_uid, plan.attempt, plan.replica, plan.incarnation)
        self._scripts[life] = script_of(program)
        self._awaited[life] = frozenset(program.awaits_lost)
        return plan

    async def pass_time(self) -> None:
        self._world.clock.advance(self._world.clock.now + _MOMENT)
        self._end_those_that_waited()
        assert not self._world.violations
        # With real time, too, the event loop takes several turns between two moments.
        for _ in range(5):
            await asyncio.sleep(0)

    def _end_those_that_waited(self) -> None:
        for sim_slot in self._world.running():
            assert sim_slot.latest is not None, "it runs"
            attempt = (sim_slot.job_uid, sim_slot.attempt)
            awaited = self._awaited[Life(*attempt, sim_slot.replica, sim_slot.latest.number)]
            if awaited and awaited == self._world.lost_reducers(*attempt):
                self._world.end(sim_slot, sim_slot.latest.script.code)

    async def cut_off(self, engine: Engine, node: str) -> None:
        self._world.cut_off(node)

    async def reconnect(self, engine: Engine, node: str) -> None:
        self._world.come_back(node)

    def leftovers(self, mark: str) -> Sequence[str]:
        return ()  # Simulated programs have no children.


def script_of(program: Program) -> Script:
    """Return a script that does what the program does."""
    prints = tuple(range(1, program.prints + 1))
    if program.ticks is not None:
        every = round(program.ticks * SECOND)
        prints += tuple(every * n for n in range(1, _TICKS))
    idles = program.runs is None and program.ticks is None and not program.eats_memory
    hangs = idles or bool(program.awaits_lost)
    runs = 10**18 if program.runs is None else round(program.runs * SECOND)
    runs = SECOND if program.eats_memory else 0 if hangs else runs
    return Script(
        runs=max(runs, program.prints + 1),
        hangs=hangs,
        code=program.code,
        signal=None if program.signal is None else int(signal.Signals(program.signal)),
        oom=program.eats_memory,
        on_term=programs.OnTerm(OnTerm(program.on_term).value),
        term_code=program.term_code,
        prints=prints,
    )
