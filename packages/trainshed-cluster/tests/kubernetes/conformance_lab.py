"""The Kubernetes engine as the conformance suite wants it: a process of the real machine, on the lab's
nodes."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.engines.conformance.lab import Program
from tests.kubernetes.lab import IMAGE, KubernetesLab
from tests.kubernetes.rootfs import PYTHON
from tests.slurm.conformance_lab import OnMachines, context_of
from trainshed.core.launch import LaunchPlan
from trainshed.engines.port import Engine
from trainshed_cluster.kubernetes.build import new_engine


class KubernetesEngineLab(OnMachines):
    """`settings`: of `[engines.kubernetes]`, besides what the lab asks for."""

    # A Pod that is replaced before its agent connects may occupy an old kubelet for a minute.
    patience = 240.0

    def __init__(self, lab: KubernetesLab, directory: Path, kills: int, **settings: Any) -> None:
        table = {**lab_settings(lab), **settings}
        super().__init__(lab, engine_of, directory, settings=table, kills=kills)

    def given(self, plan: LaunchPlan, program: Program) -> LaunchPlan:
        """By the Python of the Pods' image."""
        return replace(plan, argv=(PYTHON, *program.argv()[1:]))


def lab_settings(lab: KubernetesLab) -> dict[str, Any]:
    """Of `[engines.kubernetes]`, by which a service of the real machine uses the lab."""
    return {
        "kubeconfig": str(lab.kubeconfig),
        "image": IMAGE,
        "address": lab.outside,
        # Machines of the table have more processors than this one.
        "overcommit": 8.0,
    }


def engine_of(directory: Path, settings: dict[str, Any]) -> Engine:
    return new_engine(context_of(directory, settings))
