"""Where what is half pulled lies, and that nothing of it stays (spec/runtimes#builds)."""

from pathlib import Path

from trainshed.runtimes.images.service import ScratchDirectories


def test_it_is_gone_with_the_pull(tmp_path: Path) -> None:
    """spec/runtimes#builds."""
    with ScratchDirectories(tmp_path / "pulls").place() as place:
        (place / "storage1").mkdir()
        (place / "storage1" / "half").write_text("a layer")
    assert list((tmp_path / "pulls").iterdir()) == []


def test_what_a_killed_service_left_is_removed_and_what_another_needs_is_not(
    tmp_path: Path,
) -> None:
    """spec/runtimes#builds: services may share a cache."""
    left = tmp_path / "pulls" / "left"
    left.mkdir(parents=True)
    (left / "half").write_text("a layer")
    with ScratchDirectories(tmp_path / "pulls").place() as place:
        ScratchDirectories(tmp_path / "pulls").sweep()
        assert list((tmp_path / "pulls").iterdir()) == [place]


def test_where_nothing_was_pulled_there_is_nothing_to_remove(tmp_path: Path) -> None:
    """spec/runtimes#builds: a cache that is new, or another user's."""
    ScratchDirectories(tmp_path / "pulls").sweep()
    assert list(tmp_path.iterdir()) == []
