"""Deleting slots, whatever their programs left in them."""

import os
from pathlib import Path

from trainshed.replica.system import trees


def test_a_tree_without_rights_goes_and_what_its_links_lead_to_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    tree = tmp_path / "tree"
    inner = tree / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    (tree / "link").symlink_to(kept)
    inner.chmod(0)
    (tree / "a").chmod(0o500)
    trees.delete(str(tree))
    assert not tree.exists()
    assert (kept / "file").exists()


def test_a_tree_deeper_than_anybody_can_follow_goes(tmp_path: Path) -> None:
    """A program that made it must not keep what others threw away from being deleted."""
    trash = tmp_path / "trash"
    for name in ("deep", "other"):
        (trash / name).mkdir(parents=True)
    deepen(trash / "deep", 1500)
    trees.sweep(str(trash))
    assert list(trash.iterdir()) == []


def deepen(directory: Path, levels: int) -> None:
    """Make so many directories within each other: deeper than a path can be long."""
    here = os.open(directory, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
