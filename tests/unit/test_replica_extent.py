"""Files of replicas: measured (spec/machines#disk), deleted, and replaced in one step."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.open_files import opened
from trainshed.replica.system import durable, trees
from trainshed.replica.system.trees import TreeSize

MIB = 1 << 20


def measured(top: Path) -> int:
    tree = TreeSize(str(top))
    assert tree.measure(60.0)
    return tree.found


def write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Three megabytes at some depths, of real data: a hole takes nothing."""
    made = tmp_path / "files"
    write(made / "a", MIB)
    write(made / "work" / "b", MIB)
    write(made / "work" / "deeper" / "still" / "c", MIB)
    with (made / "hole").open("wb") as file:
        file.truncate(1 << 40)
    return made


def test_it_is_what_du_says(top: Path) -> None:
    (top / "work" / "second").hardlink_to(top / "a")
    done = subprocess.run(["du", "-s", "-B1", top], capture_output=True, check=True, text=True)
    # The directory itself is not below itself.
    assert measured(top) == int(done.stdout.split()[0]) - top.stat().st_blocks * 512


def test_links_lead_nowhere(top: Path, tmp_path: Path) -> None:
    """A program makes them: neither one that was there nor one that takes a directory's place is followed."""
    before = measured(top)
    write(tmp_path / "others" / "large", 8 * MIB)
    (top / "link").symlink_to(tmp_path / "others")
    assert measured(top) - before < MIB
    with pytest.raises(OSError, match="link"):
        TreeSize(str(top / "link"))


def test_a_link_in_a_directory_s_place_is_not_followed(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the place between the look at the directory and its being opened."""
    write(tmp_path / "others" / "large", 8 * MIB)
    opened = os.open

    def swapped(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if path == "work":
            (top / "work").rename(tmp_path / "aside")
            (top / "work").symlink_to(tmp_path / "others")
        return opened(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapped)
    assert measured(top) < 2 * MIB


def test_nothing_is_too_deep_to_be_passed_over(top: Path) -> None:
    """Each directory on the way down is open: of 300 some are left out, and no handle is."""
    deepen(top, 300)
    assert measured(top) >= 3 * MIB
    assert opened(top) == []


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
    for name in ("deep", "other"):
        (tmp_path / name).mkdir()
    deepen(tmp_path / "deep", 1500)
    trees.delete(*map(str, tmp_path.iterdir()))
    assert list(tmp_path.iterdir()) == []


def deepen(directory: Path, levels: int) -> None:
    """Make so many directories within each other: deeper than a path can be long."""
    here = os.open(directory, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def test_a_write_that_takes_only_a_part_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is nearly full takes a part without an error; a cut document must not replace a whole
    one."""
    write = os.write

    def part(handle: int, data: memoryview) -> int:
        return write(handle, data[:3])

    monkeypatch.setattr(os, "write", part)
    durable.write(str(tmp_path / "slots.json"), "the whole text", sync=False)
    assert (tmp_path / "slots.json").read_text() == "the whole text"


def test_another_file_system_does_not_count(tmp_path: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system")
    tree = TreeSize("/dev")
    assert tree.measure(60.0)
    write(own := shared / f"trainshed-test-{os.getpid()}", 4 * MIB)
    try:
        again = TreeSize("/dev")
        assert again.measure(60.0)
        assert again.found - tree.found < MIB
    finally:
        own.unlink()
