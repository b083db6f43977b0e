"""Which engines a configuration may choose, and how one is found by its name."""

import importlib.metadata
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from tests.sim.engine.engine import SimEngine
from trainshed.engines import registry
from trainshed.engines.local.engine import new_engine


def test_other_packages_offer_theirs_as_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("other", "tests.sim.engine.engine:SimEngine", registry.ENGINES)

    def offered(group: str) -> EntryPoints:
        return EntryPoints([point]).select(group=group)

    monkeypatch.setattr(importlib.metadata, "entry_points", offered)
    assert registry.names() == ("kubernetes", "local", "other", "slurm")
    assert registry.factory("other") is SimEngine
    assert registry.factory("local") is new_engine
