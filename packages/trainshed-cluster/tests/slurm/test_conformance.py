"""The conformance suite on the Slurm engine, on real nodes of a real Slurm. test_conformance_users.py runs it
on the login node as other users."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conformance.lab import Lab, Program
from tests.engines.conformance.stage import PRIMARY, SECOND_REPLICA, Stage, run_with_stage
from tests.engines.conformance.suite import Conformance
from tests.slurm.conformance_lab import MachineLab, settle_at_once, slurm_engine
from tests.slurm.lab import CPUS, SlurmLab
from tests.soaks import SOAKS
from trainshed.engines.port import NodesChosen


def outside(lab: SlurmLab, directory: Path, **more: Any) -> Lab:
    """Return a lab whose engine is a process of the real machine and uses the lab's Slurm commands."""
    own = {"commands": str(lab.commands), "directory": "/tmp/agents", "address": lab.outside}
    kills = 6 if SOAKS else 1
    return MachineLab(lab, slurm_engine, directory, settings=own | more, kills=kills)


class TestSlurm(Conformance):
    #: The tests about allocations and nodes. engines/test_remote.py covers the rest.
    in_short = "gang", "out_of_memory", "loss_is", "replica_moves", "survive_a_service_restart"

    @pytest.fixture
    def lab(self, slurm_lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
        settle_at_once(monkeypatch)
        yield outside(slurm_lab, tmp_path)
        slurm_lab.clear()


def test_slurm_chooses_the_nodes_of_a_gang_in_its_queue(
    slurm_lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`queue = "slurm"`: the requested node is busy, and other nodes are not."""
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
            assert (await stage.wait_for_exit(uid, slot.replica)).exit.exit_code == 0
        [nodes] = [event.nodes for event in stage.events if isinstance(event, NodesChosen)]
        assert dict(nodes) == {PRIMARY: "node2", SECOND_REPLICA: "node2"}

    run_with_stage(body)(None, outside(slurm_lab, tmp_path, queue="slurm"))
    slurm_lab.clear()
