"""The Kubernetes engine in the conformance suite: a process of the real machine over nodes of the lab."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.engines.conformance.lab import Program
from tests.kubernetes.lab import IMAGE, KubernetesLab
from tests.kubernetes.rootfs import PYTHON
from tests.slurm.conformance_lab import MachineLab, engine_context
from trainshed.core.launch import LaunchPlan
from trainshed.engines.port import Engine
from trainshed_cluster.kubernetes.build import new_engine


class KubernetesEngineLab(MachineLab):
    """Binds the engine to the suite. `settings`: of `[engines.kubernetes]`, in addition to the lab's."""

    # An old kubelet may need a minute for a Pod that is replaced before its agent connects.
    patience = 240.0

    def __init__(self, lab: KubernetesLab, directory: Path, kills: int, **settings: Any) -> None:
        table = {**lab_settings(lab), **settings}
        super().__init__(lab, engine_of, directory, settings=table, kills=kills)

    def with_program(self, plan: LaunchPlan, program: Program) -> LaunchPlan:
        """Return the plan with the Python of the Pods' image."""
        return replace(plan, argv=(PYTHON, *program.argv()[1:]))


def lab_settings(lab: KubernetesLab) -> dict[str, Any]:
    """Return the settings `[engines.kubernetes]` with which a service of the real machine uses the lab."""
    return {
        "kubeconfig": str(lab.kubeconfig),
        "image": IMAGE,
        "address": lab.outside,
        # The machine types in the table have more processors than this machine.
        "overcommit": 8.0,
    }


def engine_of(directory: Path, settings: dict[str, Any]) -> Engine:
    return new_engine(engine_context(directory, settings))
