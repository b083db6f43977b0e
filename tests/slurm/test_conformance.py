"""The conformance suite on the Slurm engine, on real nodes of a real Slurm."""

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.lab import CPUS, SlurmLab
from tests.soaks import SOAKS
from trainshed.core.secrets import SecretRef
from trainshed.engines.conformance.lab import Lab, LabWithNodes, Program
from trainshed.engines.conformance.stage import PRIMARY, SECOND_REPLICA, Stage, staged
from trainshed.engines.conformance.suite import Conformance
from trainshed.engines.port import Engine, NodesChosen, ServiceAccess
from trainshed.engines.registry import EngineContext, ProgramRules
from trainshed.engines.slurm.build import new_engine


class _NoSecrets:
    async def values(self, project_id: str, refs: Collection[SecretRef]) -> Mapping[SecretRef, str]:
        return {}


def context(directory: Path, settings: dict[str, Any]) -> EngineContext:
    return EngineContext(
        data=directory,
        settings=settings,
        secrets=_NoSecrets(),
        now=time.time_ns,
        hidden=(),
        kept_ports=(),
        access=ServiceAccess(),
        zygote=None,
        rules=ProgramRules(
            visible=(Path(sys.prefix), Path(sys.base_prefix)), autopsy_ttl=3600 * 10**9
        ),
    )


def engine_of(directory: Path, settings: dict[str, Any]) -> Engine:
    return new_engine(context(directory, settings))


class SlurmEngineLab(LabWithNodes):
    patience = 40.0
    kills = 6 if SOAKS else 1

    def __init__(self, lab: SlurmLab, directory: Path, **more: Any) -> None:
        self._lab = lab
        self._directory = directory
        self._settings = {
            "address": lab.outside,
            "commands": str(lab.commands),
            "directory": "/tmp/agents",
            "lease": 10.0,
            "shared": True,
            **more,
        }

    def engine(self) -> Engine:
        return self.elsewhere()()

    def elsewhere(self) -> Callable[[], Engine]:
        return partial(engine_of, self._directory, self._settings)

    async def cut_off(self, engine: Engine, node: str) -> None:
        self._lab.unplug(node)

    async def reconnect(self, engine: Engine, node: str) -> None:
        self._lab.replug(node)


class TestSlurm(Conformance):
    @pytest.fixture
    def lab(self, slurm_lab: SlurmLab, tmp_path: Path) -> Iterator[Lab]:
        yield SlurmEngineLab(slurm_lab, tmp_path)
        slurm_lab.clear()


@pytest.mark.soak
class TestOneOfSeveralClusters(Conformance):
    """Nodes have the names of their cluster before their own. A soak: the engine is the same; what is its own
    is proved by test_joined_clusters.py."""

    @pytest.fixture
    def lab(self, slurm_lab: SlurmLab, tmp_path: Path) -> Iterator[Lab]:
        clusters: dict[str, object] = {
            "all": {},
            "short": {"partition": "short", "regions": ["us-east1"]},
        }
        yield _JoinedLab(slurm_lab, tmp_path, clusters=clusters)
        slurm_lab.clear()


class _JoinedLab(SlurmEngineLab):
    async def cut_off(self, engine: Engine, node: str) -> None:
        await super().cut_off(engine, node.partition(".")[2])

    async def reconnect(self, engine: Engine, node: str) -> None:
        await super().reconnect(engine, node.partition(".")[2])


def test_where_the_queue_is_slurms_it_chooses_nodes_for_a_gang(
    slurm_lab: SlurmLab, tmp_path: Path
) -> None:
    """`queue = "slurm"`: the node that requests name is busy, and others are not."""
    busy = ["--no-shell", "-J", "others", "-w", "node1", f"-c{CPUS}", "--mem=1000"]
    slurm_lab.slurm("salloc", *busy)

    async def body(_: object, stage: Stage) -> None:
        uid = stage.job()
        slots = await stage.allocate(uid, PRIMARY, SECOND_REPLICA, node="node1")
        assert {slot.node for slot in slots} == {"node2"}
        plans = [stage.plan(uid, Program(prints=1), slot.replica) for slot in slots]
        await stage.engine.launch(plans)
        for slot in slots:
            assert (await stage.exited(uid, slot.replica)).exit.exit_code == 0
        [told] = [event.nodes for event in stage.events if isinstance(event, NodesChosen)]
        assert dict(told) == {PRIMARY: "node2", SECOND_REPLICA: "node2"}

    staged(body)(None, SlurmEngineLab(slurm_lab, tmp_path, queue="slurm"))
    slurm_lab.clear()
