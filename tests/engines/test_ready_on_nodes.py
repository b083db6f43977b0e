"""On nodes that are kept programs begin in forks of an interpreter that is up already (docs/adr/0143)."""

import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.contract.engines.warm.runtimes import ToyRuntime
from tests.engines.remote_lab import RemoteLab
from tests.ports import free_port
from trainshed.core.launch import WarmStart
from trainshed.core.lifecycle.replica_events import ReplicaNoted
from trainshed.engines.conformance.lab import Program
from trainshed.engines.conformance.stage import Stage, staged

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: its nodes need root")
_FIRST, _FORKED = "2", "3"
"""Numbers of a program in its namespace: it is the guardian's first child, or comes behind the process that
has forked it."""
_COLD = "started cold: no frameworks are kept imported on nodes"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> ToyRuntime:
    return ToyRuntime(
        tmp_path_factory.mktemp("ready"), (sys.version_info.major, sys.version_info.minor)
    )


class TestNodesThatAreKept:
    runtime: ToyRuntime

    @pytest.fixture
    def lab(self, tmp_path: Path, runtime: ToyRuntime) -> RemoteLab:
        self.runtime = runtime
        return RemoteLab(tmp_path, free_port(), keep=60.0, ready_idle=60.0)

    @staged
    async def test_have_an_interpreter_up_for_the_next_program(self, stage: Stage) -> None:
        warm = self.runtime.warm_without_imports()
        assert await _shown(stage, self.runtime, warm) == _FIRST
        for _ in range(200):
            if (shown := await _shown(stage, self.runtime, warm)) != _FIRST:
                break
        assert shown == _FORKED

    @staged
    async def test_import_nothing_ahead(self, stage: Stage) -> None:
        """An agent's memory is the job's, and its life is short."""
        for _ in range(2):
            assert await _shown(stage, self.runtime, self.runtime.warm()) == f"{_FIRST} {_COLD}"


class TestNodesThatAreNotKept:
    runtime: ToyRuntime

    @pytest.fixture
    def lab(self, tmp_path: Path, runtime: ToyRuntime) -> RemoteLab:
        self.runtime = runtime
        return RemoteLab(tmp_path, free_port())

    @staged
    async def test_say_nothing_of_an_interpreter_that_nobody_has_asked_for(
        self, stage: Stage
    ) -> None:
        for _ in range(2):
            assert await _shown(stage, self.runtime, self.runtime.warm_without_imports()) == _FIRST


async def _shown(stage: Stage, runtime: ToyRuntime, warm: WarmStart) -> str:
    """The number of a program of a new job in its namespace, and what is told of how it began; the job is
    given back."""
    uid = stage.job()
    await stage.allocate(uid)
    plan = replace(
        stage.plan(uid, Program()),
        argv=("python3", str(runtime.layer.site / "numbered.py")),
        software=runtime.software(runtime.layer),
        warm=warm,
    )
    await stage.launch(plan)
    await stage.end(uid)
    (line,) = stage.lines(uid)
    told = [event.text for event in stage.seen(uid) if isinstance(event, ReplicaNoted)]
    await stage.engine.release(uid, 1)
    stage.forget(uid, 1)
    return " ".join([line["m"], *told])
