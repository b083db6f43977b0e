"""The conformance suite on all built-in engines."""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.contract.ordinary_user import as_root_only, run_as_nobody
from tests.engines.conformance.lab import Lab, LabWithNodes, Program
from tests.engines.conformance.suite import Conformance
from tests.sim.engine.clock import Clock
from tests.sim.engine.engine import SimEngine
from tests.sim.engine.programs import Life, Script
from tests.sim.engine.world import SECOND, Times, World
from tests.soaks import KILLS, KILLS_OF_LOCAL
from trainshed.core.capacity import Node
from trainshed.core.launch import LaunchPlan
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options
from trainshed.engines.port import Engine, ProgramRules
from trainshed.replica.protocol import LEVEL_SESSION

_MOMENT = SECOND // 20
_TICKS = 10_000
"""More than the output of any program in the suite."""


class SimLab(LabWithNodes):
    def __init__(self) -> None:
        self._scripts: dict[Life, Script] = {}
        nodes = [Node(f"node-{n}", 64, 1 << 40) for n in range(2)]
        times = Times(lease=2 * SECOND, fence=6 * SECOND, start=_MOMENT)
        self._world = World(Clock(1000 * SECOND), nodes, self._scripts.__getitem__, times=times, strict=True)

    def engine(self) -> Engine:
        return SimEngine(self._world)

    def with_program(self, plan: LaunchPlan, program: Program) -> LaunchPlan:
        life = Life(plan.job_uid, plan.attempt, plan.replica, plan.incarnation)
        self._scripts[life] = script_of(program)
        return plan

    async def pass_time(self) -> None:
        self._world.clock.advance(self._world.clock.now + _MOMENT)
        assert not self._world.violations
        # The event loop also needs several turns between two times in real time.
        for _ in range(5):
            await asyncio.sleep(0)

    async def cut_off(self, engine: Engine, node: str) -> None:
        self._world.cut_off(node)

    async def reconnect(self, engine: Engine, node: str) -> None:
        self._world.come_back(node)

    def leftovers(self, mark: str) -> Sequence[str]:
        return ()  # Simulated programs have no children.


def script_of(program: Program) -> Script:
    """Return a script with the program's behavior."""
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
        on_term=program.on_term,
        term_code=program.term_code,
        prints=prints,
    )


HOUR = 3600 * 10**9


class LocalLab(Lab):
    """`level`: the required isolation; None = the strongest available."""

    def __init__(self, data: Path, level: str | None) -> None:
        self._data = data
        # The tests' interpreter may be in a directory that only its owner can access.
        own = (Path(sys.prefix), Path(sys.base_prefix))
        rules = ProgramRules(level, autopsy_ttl=HOUR)
        self._options = Options(rules=rules, nodes=2, read_only=own)

    def engine(self) -> Engine:
        return self.elsewhere()()

    def elsewhere(self) -> Callable[[], Engine]:
        return partial(LocalEngine, self._data, self._options)


class TestLocal(Conformance):
    @pytest.fixture
    def lab(self, tmp_path: Path) -> Lab:
        lab = LocalLab(tmp_path / "data", None)
        lab.kills = KILLS_OF_LOCAL
        return lab


class TestLocalWithoutNamespaces(Conformance):
    #: It differs in starting, identifying and stopping programs. The tests above cover the rest; here it is a
    #: soak.
    in_short = (
        "replicas_of_a_gang_start",
        "exits_are_reported",
        "out_of_memory",
        "stop_honors_the_grace",
        "stop_of_one_replica",
        "release_removes",
        "survive_a_service_restart",
        "stop_completes_despite",
    )

    @pytest.fixture
    def lab(self, tmp_path: Path) -> Lab:
        lab = LocalLab(tmp_path / "data", LEVEL_SESSION)
        lab.kills = KILLS
        return lab


class TestSimulated(Conformance):
    @pytest.fixture
    def lab(self) -> Lab:
        return SimLab()


@as_root_only
def test_local_engine_passes_the_suite_as_an_unprivileged_user() -> None:
    """spec/program#isolation: with or without root. Without namespaces, root makes no difference."""
    which = " or ".join(TestLocalWithoutNamespaces.in_short)
    chosen = f"({which}) and not kill_at_any_step"
    run_as_nobody(f"{__file__}::TestLocal", "-m", "", "-k", chosen)
