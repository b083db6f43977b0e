"""Deleting slots, whatever their programs left in them."""

from pathlib import Path

from trainshed.replica import sweeping


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
    sweeping.delete(str(tree))
    assert not tree.exists()
    assert (kept / "file").exists()


def test_what_is_gone_already_is_no_error(tmp_path: Path) -> None:
    sweeping.delete(str(tmp_path / "nothing"))
