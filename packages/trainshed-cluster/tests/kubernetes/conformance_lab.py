"""The Kubernetes engine as the conformance suite wants it: a process of the real machine, on the lab's
nodes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.engines.conformance.lab import LabWithNodes, Program
from tests.kubernetes.lab import IMAGE, KubernetesLab
from tests.kubernetes.rootfs import PYTHON
from tests.slurm.conformance_lab import context_of
from trainshed.core.launch import LaunchPlan
from trainshed.engines.port import Engine
from trainshed_cluster.kubernetes.build import new_engine


class KubernetesEngineLab(LabWithNodes):
    """`settings`: of `[engines.kubernetes]`, besides what the lab asks for."""

    patience = 60.0

    def __init__(self, lab: KubernetesLab, directory: Path, kills: int, **settings: Any) -> None:
        self.kills = kills
        self.cluster = lab
        self._directory = directory
        self._settings = {**lab_settings(lab), "lease": 10.0, **settings}

    def engine(self) -> Engine:
        return self.elsewhere()()

    def elsewhere(self) -> Callable[[], Engine]:
        return partial(engine_of, self._directory, self._settings)

    def given(self, plan: LaunchPlan, program: Program) -> LaunchPlan:
        """By the Python of the Pods' image."""
        return replace(plan, argv=(PYTHON, *program.argv()[1:]))

    async def cut_off(self, engine: Engine, node: str) -> None:
        self.cluster.unplug(node)

    async def reconnect(self, engine: Engine, node: str) -> None:
        self.cluster.replug(node)


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
