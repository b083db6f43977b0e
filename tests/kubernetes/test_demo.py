"""`trainshed demo --engine kubernetes`: a node is lost in the middle of training, as a newcomer sees it."""

from pathlib import Path

import pytest

from tests.e2e.running import command, environment
from tests.kubernetes.demo import write_config
from tests.kubernetes.lab import KubernetesLab
from tests.slurm.demo import power_switch
from tests.slurm.test_demo import told, went_on

pytestmark = pytest.mark.kubernetes


def demonstrate(lab: KubernetesLab, directory: Path, *arguments: str) -> tuple[str, str]:
    """Which node was lost, and where the primary went on."""
    config = write_config(lab, directory / "service")
    words = ["demo", "--engine", "kubernetes", "--config", str(config), *arguments]
    said = told(command(*words), environment(directory / "service" / "data"))
    return went_on(said, asked=not arguments)


def test_on_a_cluster_whose_nodes_nobody_may_harm(
    kubernetes_lab: KubernetesLab, tmp_path: Path
) -> None:
    """The Pods are deleted, and the node left alone until the demo is over."""
    lost, elsewhere = demonstrate(kubernetes_lab, tmp_path)
    kubernetes_lab.clear()
    assert lost != elsewhere
    assert lost in kubernetes_lab.ready()


def test_a_node_whose_power_is_switched_off(kubernetes_lab: KubernetesLab, tmp_path: Path) -> None:
    with power_switch(kubernetes_lab) as switch:
        lost, elsewhere = demonstrate(kubernetes_lab, tmp_path, "--power-off", str(switch))
    kubernetes_lab.revive(lost)
    kubernetes_lab.await_ready()
    kubernetes_lab.clear()
    assert lost != elsewhere
