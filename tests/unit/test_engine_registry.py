"""Tests of the engines that a configuration may choose, and of finding an engine by name."""

import importlib.metadata
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from pkgutil import resolve_name

import pytest

from tests.sim.engine.engine import SimEngine
from trainshed.engines import registry
from trainshed.engines.local.engine import new_engine


def test_engine_of_a_third_party_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("other", "tests.sim.engine.engine:SimEngine", registry.ENGINES)

    def list_entry_points(group: str) -> EntryPoints:
        return EntryPoints([point]).select(group=group)

    monkeypatch.setattr(importlib.metadata, "entry_points", list_entry_points)
    known = registry._CLUSTER_ENGINES  # pyright: ignore[reportPrivateUsage]
    assert registry.names() == tuple(sorted(("local", "other", *known)))
    assert registry.factory("other") is SimEngine
    assert registry.factory("local") is new_engine


def test_engines_of_the_cluster_package_are_known_by_name() -> None:
    """Users get the name of the package if it is not installed."""
    project = Path(__file__).parents[2] / "packages/trainshed-cluster/pyproject.toml"
    points = tomllib.loads(project.read_text())["project"]["entry-points"][registry.ENGINES]
    assert set(points) == set(registry._CLUSTER_ENGINES)  # pyright: ignore[reportPrivateUsage]
    assert all(map(callable, map(resolve_name, points.values())))
