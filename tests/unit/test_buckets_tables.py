"""Whose buckets are, as the catalogue tells."""

from __future__ import annotations

from pathlib import Path

from trainshed.buckets.disk.catalog import BucketCatalog
from trainshed.buckets.setup import BucketRules


def test_shared_buckets_and_those_of_nobody_have_a_project_as_well(tmp_path: Path) -> None:
    rules = BucketRules("own", frozenset({"near-1"}))
    catalog = BucketCatalog(tmp_path / "store", lambda: 7, rules)
    catalog.create("mine-1", project="p")
    catalog.create("near-1", project="vision")
    (tmp_path / "store" / "put-1").mkdir()
    held = {name: catalog.holding(name) for name in ("put-1", "near-1", "mine-1", "none-1", "A")}
    shown = {name: holding and (holding.project, holding.shared) for name, holding in held.items()}
    theirs = {"put-1": ("own", False), "near-1": ("vision", True), "mine-1": ("p", False)}
    assert shown == {**theirs, "none-1": None, "A": None}


def test_a_policy_that_is_set_counts_at_once(tmp_path: Path) -> None:
    """Also where it was set by another process: the record's file is looked at each time."""
    here, there = (BucketCatalog(tmp_path / "store", lambda: 7) for _ in range(2))
    here.create("mine-1", project="p")
    first = there.holding("mine-1")
    here.set_policy("mine-1", [{"role": "r", "members": ["m"]}])
    second = there.holding("mine-1")
    assert first is not None
    assert second is not None
    assert (list(first.bindings), list(second.bindings)) == ([], [{"role": "r", "members": ["m"]}])
    here.delete("mine-1")
    assert there.holding("mine-1") is None


def test_the_default_bucket_belongs_to_the_services_own_project_whoever_made_it(
    tmp_path: Path,
) -> None:
    """The setting may have changed."""
    former = BucketRules("p", default="home-1")
    BucketCatalog(tmp_path / "store", lambda: 7, former).ensure("home-1")
    catalog = BucketCatalog(tmp_path / "store", lambda: 8, BucketRules("own", default="home-1"))
    held = catalog.holding("home-1")
    assert held and (held.project, held.shared) == ("own", False)
