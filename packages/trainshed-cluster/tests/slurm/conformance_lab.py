"""The engines of clusters in the conformance suite, over machines of a lab."""

import sys
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conformance.lab import Lab, LabWithNodes
from tests.slurm.nodes import Machines
from trainshed.core.secrets import SecretRef
from trainshed.engines.port import Engine, ProgramRules, ServiceAccess
from trainshed.engines.registry import EngineContext
from trainshed_cluster.slurm import cluster
from trainshed_cluster.slurm.build import new_engine

Build = Callable[[Path, dict[str, Any]], Engine]
"""Builds an engine from a directory and the engine's table."""


class ClusterLab(Lab):
    """Builds engines with `build`, from a directory and the engine's table `settings`."""

    patience = 60.0

    def __init__(self, build: Build, directory: Path, settings: Mapping[str, Any], kills: int) -> None:
        self.kills = kills
        self._new_engine = partial(build, directory, {"lease": 10.0, **settings})

    def engine(self) -> Engine:
        return self._new_engine()

    def elsewhere(self) -> Callable[[], Engine]:
        return self._new_engine


class MachineLab(ClusterLab, LabWithNodes):
    """A lab whose nodes can be disconnected."""

    def __init__(self, machines: Machines, build: Build, directory: Path, **more: Any) -> None:
        super().__init__(build, directory, **more)
        self._machines = machines

    async def cut_off(self, engine: Engine, node: str) -> None:
        self._machines.unplug(node)

    async def reconnect(self, engine: Engine, node: str) -> None:
        self._machines.replug(node)


class _NoSecrets:
    async def values(self, project_id: str, refs: Collection[SecretRef]) -> Mapping[SecretRef, str]:
        return {}


def settle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the wait of a closing engine until Slurm's controller has saved its releases. The suite never
    kills the controller; test_leftover_allocations.py does."""
    monkeypatch.setattr(cluster, "_SAVE_INTERVAL", 0.0)


def slurm_engine(directory: Path, settings: dict[str, Any]) -> Engine:
    rules = ProgramRules(visible=(sys.prefix, sys.base_prefix))
    return new_engine(engine_context(directory, {"shared": True, **settings}, rules))


def engine_context(
    directory: Path, settings: dict[str, Any], rules: ProgramRules | None = None
) -> EngineContext:
    """Return the context of a service that has only that directory."""
    return EngineContext(
        data=directory,
        settings=settings,
        secrets=_NoSecrets(),
        now=time.time_ns,
        hidden=(),
        kept_ports=(),
        access=ServiceAccess(),
        rules=rules or ProgramRules(),
        cache=directory / "cache",
    )
