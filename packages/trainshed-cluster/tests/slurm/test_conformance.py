"""The conformance suite on the Slurm engine, on real nodes of a real Slurm. On its login node, as other
users: test_conformance_users.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conformance.lab import Lab, Program
from tests.engines.conformance.stage import PRIMARY, SECOND_REPLICA, Stage, staged
from tests.engines.conformance.suite import Conformance
from tests.slurm.conformance_lab import OnMachines, settle_at_once, slurm_engine
from tests.slurm.lab import CPUS, SlurmLab
from tests.soaks import SOAKS
from trainshed.engines.port import NodesChosen


def outside(lab: SlurmLab, directory: Path, **more: Any) -> Lab:
    """Its engine is a process of the real machine, and Slurm's commands are the lab's."""
    own = {"commands": str(lab.commands), "directory": "/tmp/agents", "address": lab.outside}
    kills = 6 if SOAKS else 1
    return OnMachines(lab, slurm_engine, directory, settings=own | more, kills=kills)


class TestSlurm(Conformance):
    #: What its holds and nodes have to do with. All else is the remote engine's: engines/test_remote.py.
    in_short = "gang", "out_of_memory", "loss_is", "replica_moves", "survive_a_service_restart"

    @pytest.fixture
    def lab(
        self, slurm_lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Lab]:
        settle_at_once(monkeypatch)
        yield outside(slurm_lab, tmp_path)
        slurm_lab.clear()


def test_where_the_queue_is_slurms_it_chooses_nodes_for_a_gang(
    slurm_lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`queue = "slurm"`: the node that requests name is busy, and others are not."""
    settle_at_once(monkeypatch)
    busy = ["--no-shell", "-J", "others", "-w", "node1", f"-c{CPUS}", "--mem=1000"]
    slurm_lab.slurm("salloc", *busy)

    async def body(_: object, stage: Stage) -> None:
        uid = stage.job()
        slots = await stage.allocate(uid, PRIMARY, SECOND_REPLICA, node="node1")
        assert {slot.node for slot in slots} == {"node2"}
        plans = [stage.plan(uid, Program(prints=1), slot.replica) for slot in slots]
        await stage.launch(*plans)
        for slot in slots:
            assert (await stage.exited(uid, slot.replica)).exit.exit_code == 0
        [nodes] = [event.nodes for event in stage.events if isinstance(event, NodesChosen)]
        assert dict(nodes) == {PRIMARY: "node2", SECOND_REPLICA: "node2"}

    staged(body)(None, outside(slurm_lab, tmp_path, queue="slurm"))
    slurm_lab.clear()
