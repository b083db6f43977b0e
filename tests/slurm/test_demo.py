"""`trainshed demo --engine slurm`: a node is lost in the middle of training, as a newcomer sees it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.contract.ordinary_user import NOBODY
from tests.e2e.running import command, common_place, environment
from tests.slurm.demo import power_switch, write_config
from tests.slurm.lab import SlurmLab
from tests.slurm.whole import give_environments, on_login_node

TWO_CLUSTERS = """
[engines.slurm.clusters.east]
regions = ["us-east1"]
partition = "tiny"

[engines.slurm.clusters.rest]
conf = "/etc/slurm/slurm.conf"
"""
"""Two partitions of one Slurm stand for them; the demo's job runs in the second one."""


def demonstrate(lab: SlurmLab, name: str, *arguments: str) -> str:
    """What the demo prints; it succeeds."""
    directory = lab.directory / name
    directory.mkdir()
    config = write_config(lab, directory)
    words = ["demo", "--engine", "slurm", "--config", str(config), *arguments]
    said = told(command(*words), environment(directory / "data"))
    assert Path(directory / "data" / "trainshed.db").exists()
    return said


def told(argv: list[str], environment: dict[str, str]) -> str:
    """What a demo prints; it succeeds."""
    done = subprocess.run(
        argv,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def went_on(said: str, *, asked: bool = False) -> tuple[str, str]:
    """Which node was lost, and where the primary went on. `asked`: its program was asked to end, and could
    save what it had; else it goes on from the last checkpoint before the loss."""
    node = re.search(r"Node +(\S+) was lost after epoch (\d+); workerpool0-0 ran on (\S+) ", said)
    resumed = re.search(r"Resumed +from the checkpoint after epoch (\d+): (.+)", said)
    assert node and resumed, said
    done, saved = int(node[2]), int(resumed[1])
    assert done >= 12, said
    twice = {0: "no epoch was", 1: "1 epoch was"}.get(done - saved, f"{done - saved} epochs were")
    if not asked:
        assert saved % 5 == 0 and resumed[2] == f"{twice} trained twice", said
    accuracy = re.search(r"SUCCEEDED  accuracy (0\.\d+)", said)
    assert accuracy and float(accuracy[1]) > 0.9, said
    return node[1], node[3]


@pytest.mark.soak  # Half a minute; test_service_faults.py loses a node as well.
def test_a_node_whose_power_is_switched_off(slurm_lab: SlurmLab) -> None:
    with power_switch(slurm_lab) as switch:
        said = demonstrate(slurm_lab, "power", "--power-off", str(switch))
    lost, elsewhere = went_on(said)
    slurm_lab.revive(lost)
    slurm_lab.clear()
    assert lost != elsewhere


@pytest.mark.soak  # Likewise.
def test_on_a_cluster_whose_nodes_nobody_may_harm(slurm_lab: SlurmLab) -> None:
    """The step of the agent is killed, and the node left alone until the demo is over."""
    said = demonstrate(slurm_lab, "step")
    lost, elsewhere = went_on(said)
    assert lost != elsewhere
    assert slurm_lab.states()[lost] in ("idle", "mixed", "allocated")


@pytest.mark.soak  # Likewise.
@pytest.mark.parametrize("clusters", ["", TWO_CLUSTERS], ids=["one cluster", "two clusters"])
def test_by_an_ordinary_user_on_a_login_node(slurm_lab: SlurmLab, clusters: str) -> None:
    """Who may end the steps of his own jobs, and no more."""
    directory = common_place() / f"demo-{len(clusters)}"
    directory.mkdir()
    config = write_config(slurm_lab, directory, clusters, wrapped=False)
    os.chown(directory, NOBODY, NOBODY)
    give_environments(NOBODY)
    words = ["trainshed", "demo", "--engine", "slurm", "--config", str(config)]
    lost, elsewhere = went_on(told(*on_login_node(slurm_lab, words, NOBODY)))
    assert lost != elsewhere
    names = {name for node in (lost, elsewhere) for name in node.split(".")[:-1]}
    assert names == ({"rest"} if clusters else set())
