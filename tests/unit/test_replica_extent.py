"""Tests of measuring (spec/machines#disk), deleting and atomically replacing files of replicas."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.open_files import find_open_files
from trainshed.replica.system import durable, trees
from trainshed.replica.system.trees import TreeSize

MIB = 1 << 20


def measure(top: Path) -> int:
    """Return the size of a directory tree in bytes."""
    tree = TreeSize(str(top))
    assert tree.measure(60.0)
    return tree.found


def write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A directory tree with three megabytes of real data at several depths, because holes use no disk
    space."""
    made = tmp_path / "files"
    write(made / "a", MIB)
    write(made / "work" / "b", MIB)
    write(made / "work" / "deeper" / "still" / "c", MIB)
    with (made / "hole").open("wb") as file:
        file.truncate(1 << 40)
    return made


def test_measured_size_of_a_directory_tree_equals_the_size_reported_by_du(top: Path) -> None:
    (top / "work" / "second").hardlink_to(top / "a")
    done = subprocess.run(["du", "-s", "-B1", top], capture_output=True, check=True, text=True)
    # The size excludes the directory itself.
    assert measure(top) == int(done.stdout.split()[0]) - top.stat().st_blocks * 512


def test_directory_size_does_not_include_the_targets_of_links(top: Path, tmp_path: Path) -> None:
    """A program may create links, and replace directories by links (path traversal)."""
    before = measure(top)
    write(tmp_path / "others" / "large", 8 * MIB)
    (top / "link").symlink_to(tmp_path / "others")
    assert measure(top) - before < MIB
    with pytest.raises(OSError, match="link"):
        TreeSize(str(top / "link"))


def test_link_that_replaces_a_directory_is_not_followed(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program replaces the directory after it was listed and before it is opened."""
    write(tmp_path / "others" / "large", 8 * MIB)
    opened = os.open

    def open_after_swap(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if path == "work":
            (top / "work").rename(tmp_path / "aside")
            (top / "work").symlink_to(tmp_path / "others")
        return opened(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", open_after_swap)
    assert measure(top) < 2 * MIB


def test_directories_beyond_the_maximum_depth_are_skipped(top: Path) -> None:
    """The measurement keeps each parent directory open. Of 300 nested directories it skips the deepest, and
    it closes all file descriptors at the end."""
    deepen(top, 300)
    assert measure(top) >= 3 * MIB
    assert find_open_files(top) == []


def test_tree_without_permissions_is_deleted_but_link_targets_remain(tmp_path: Path) -> None:
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


def test_tree_deeper_than_the_longest_path_is_deleted(tmp_path: Path) -> None:
    """A program with such a tree must not block the deletion of other trees."""
    for name in ("deep", "other"):
        (tmp_path / name).mkdir()
    deepen(tmp_path / "deep", 1500)
    trees.delete(*map(str, tmp_path.iterdir()))
    assert list(tmp_path.iterdir()) == []


def deepen(directory: Path, levels: int) -> None:
    """Create `levels` nested directories, deeper than the longest path."""
    here = os.open(directory, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def test_partial_write_of_a_document_is_continued_until_the_document_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a nearly full disk, a write may succeed partially without an error. An incomplete document must not
    replace a complete document."""
    write = os.write

    def part(handle: int, data: memoryview) -> int:
        return write(handle, data[:3])

    monkeypatch.setattr(os, "write", part)
    durable.write(str(tmp_path / "slots.json"), "the whole text", sync=False)
    assert (tmp_path / "slots.json").read_text() == "the whole text"


def test_directory_size_does_not_include_mounted_file_systems(tmp_path: Path) -> None:
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
