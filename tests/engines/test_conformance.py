"""The conformance suite on every engine there is."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.contract.ordinary_user import as_root_only, run_as_nobody
from tests.engines.conformance.lab import Lab, LabWithNodes
from tests.engines.conformance.suite import Conformance
from tests.engines.cut_nodes import cut_off, rejoin
from tests.engines.simulated_lab import SimLab
from tests.soaks import KILLS, KILLS_OF_LOCAL
from trainshed.engines.local.autopsies import Keeping
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options
from trainshed.engines.port import Engine
from trainshed.replica.protocol import LEVEL_SESSION

HOUR = 3600 * 10**9


class LocalLab(LabWithNodes):
    """`level`: the isolation that is demanded, "" = the strongest there is."""

    def __init__(self, data: Path, level: str) -> None:
        self._data = data
        # The interpreter that tests run may lie where only its owner can go.
        own = (Path(sys.prefix), Path(sys.base_prefix))
        self._options = Options(
            level=level, nodes=2, lease=3.0, read_only=own, keeping=Keeping(HOUR)
        )

    def engine(self) -> Engine:
        return self.elsewhere()()

    def elsewhere(self) -> Callable[[], Engine]:
        return partial(LocalEngine, self._data, self._options)

    async def cut_off(self, engine: Engine, node: str) -> None:
        self._stopped = cut_off(self._data, node)

    async def reconnect(self, engine: Engine, node: str) -> None:
        rejoin(self._stopped)


class TestLocal(Conformance):
    @pytest.fixture
    def lab(self, tmp_path: Path) -> Lab:
        lab = LocalLab(tmp_path / "data", "")
        lab.kills = KILLS_OF_LOCAL
        return lab


class TestLocalWithoutNamespaces(Conformance):
    #: How programs are started, told apart and ended is other there. All else is above; here it is a soak.
    in_short = (
        *(
            "gang_starts",
            "signals",
            "too_much_memory",
            "stop_gives_the_grace",
            "one_replica_is_stopped",
        ),
        *(
            "lost_node",
            "nothing_is_left",
            "outlive_the_service",
            "process_killed_at_any_step_of_a_stop",
        ),
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


@pytest.mark.soak
@pytest.mark.parametrize("call", ["start_starts_once", "stop_stops"])
def test_processes_killed_at_each_single_step(tmp_path: Path, call: str) -> None:
    lab = LocalLab(tmp_path / "data", "")
    lab.kills = None
    getattr(Conformance(), f"test_a_process_killed_at_any_step_of_a_{call}")(lab)


@as_root_only
@pytest.mark.parametrize(
    # Without namespaces there is nothing that root could do and he cannot.
    ("suite", "which"),
    [
        ("TestLocal", " or ".join(TestLocalWithoutNamespaces.in_short)),
        pytest.param("TestLocal", "", marks=pytest.mark.soak),
        pytest.param("TestLocalWithoutNamespaces", "", marks=pytest.mark.soak),
    ],
)
def test_the_suite_on_the_local_engine_as_an_ordinary_user(suite: str, which: str) -> None:
    """spec/program#isolation: root or not."""
    chosen = f"({which}) and " if which else ""
    run_as_nobody(*(f"{__file__}::{suite}", "-m", "", "-k", f"{chosen}not killed_at_any_step"))
