"""The conformance suite's lab over the simulated engine."""

import asyncio
import signal
from collections.abc import Sequence

from tests.engines.conformance.lab import LabWithNodes, OnTerm, Program
from tests.sim.engine import programs
from tests.sim.engine.clock import Clock
from tests.sim.engine.engine import SimEngine
from tests.sim.engine.programs import Life, Script
from tests.sim.engine.world import SECOND, Times, World
from trainshed.core.capacity import Node
from trainshed.core.launch import LaunchPlan
from trainshed.engines.port import Engine

_MOMENT = SECOND // 20
_TICKS = 10_000
"""More than any program of the suite prints."""


class SimLab(LabWithNodes):
    def __init__(self) -> None:
        self._scripts: dict[Life, Script] = {}
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
        return plan

    async def pass_time(self) -> None:
        self._world.clock.advance(self._world.clock.now + _MOMENT)
        assert not self._world.violations
        # With real time, too, the event loop takes several turns between two moments.
        for _ in range(5):
            await asyncio.sleep(0)

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
    hangs = program.runs is None and program.ticks is None and not program.eats_memory
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
