"""Tests of the shelf: its directories are built once, read-only, and complete or missing
(spec/invariants#shelf)."""

import contextlib
import os
import shutil
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.caches import wait_for_builds
from trainshed.replica.system import durable
from trainshed.runtimes.port import BuildFailed
from trainshed.runtimes.shelf import Shelf, settle
from trainshed.runtimes.trees import remove_tree


def _fill(draft: Path) -> None:
    (draft / "inner").mkdir(parents=True)
    (draft / "inner" / "file").write_text("content")
    (draft / "template").mkdir()
    (draft / "template" / "file").write_text("copied")


def _mode(path: Path) -> int:
    return path.lstat().st_mode & 0o222


def test_setuid_bits_of_installed_files_are_removed(tmp_path: Path) -> None:
    """Setup scripts of users choose the modes of files, and the owner may be root (privilege escalation)."""

    def fill(draft: Path) -> None:
        assert draft.parent.stat().st_mode & 0o077 == 0, "others get at it before it is finished"
        draft.mkdir()
        (draft / "tool").write_text("#!/bin/sh\n")
        (draft / "tool").chmod(0o6755)

    final = Shelf(tmp_path).put("key", fill)
    assert (final / "tool").stat().st_mode & 0o7777 == 0o555
    remove_tree(final)


def test_finished_directory_of_a_read_only_cache_is_used_without_writing(tmp_path: Path) -> None:
    """A cache may be shared read-only. Directories are used even if no lock file can be created."""
    final = Shelf(tmp_path).put("key", _fill)
    remove_tree(tmp_path / ".locks")
    (tmp_path / ".locks").write_text("a lock cannot be taken here")
    assert Shelf(tmp_path).put("key", _fill) == final
    with pytest.raises(OSError, match="locks"):
        Shelf(tmp_path).put("another", _fill)
    remove_tree(final)


def test_service_completes_interrupted_builds_except_those_with_unusable_locks(tmp_path: Path) -> None:
    """A lock file that is a directory causes an OSError other than PermissionError, like a read-only disk."""
    shelf, finished = Shelf(tmp_path), list[str]()
    finals = [shelf.put(key, _fill, finish=_interrupt) for key in ("first", "second")]
    wait_for_builds()
    (tmp_path / ".locks" / "first").unlink()
    (tmp_path / ".locks" / "first").mkdir()
    shelf.finish_all(lambda path: finished.append(path.name))
    assert finished == ["second"]
    for final in finals:
        remove_tree(final)


def _interrupt(_: Path) -> None:
    raise BuildFailed("The service is being stopped.")


def test_permissions_of_link_targets_outside_a_new_environment_are_not_changed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("not ours")

    def fill(draft: Path) -> None:
        draft.mkdir()
        (draft / "link").symlink_to(outside)

    final = Shelf(tmp_path / "shelf").put("key", fill)
    assert _mode(outside) != 0
    assert _mode(outside / "file") != 0
    remove_tree(final)
    assert (outside / "file").read_text() == "not ours"


def test_tree_deeper_than_the_longest_path_is_removed(tmp_path: Path) -> None:
    name = 250 * "n"
    with contextlib.chdir(tmp_path):
        for _ in range(20):
            Path(name).mkdir()
            os.chdir(name)
    remove_tree(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_failed_build_deletes_its_files_and_can_be_repeated(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)

    def fail(draft: Path) -> None:
        _fill(draft)
        raise RuntimeError("no disk")

    with pytest.raises(RuntimeError):
        shelf.put("key", fail)
    assert not shelf.has("key")
    assert not list((tmp_path / ".drafts").iterdir())
    shelf.put("key", _fill)
    assert shelf.has("key")


def test_after_a_power_failure_only_synced_directories_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A power cut before any data was written to the disk.
    monkeypatch.setattr(durable, "sync_file_system", Mock(side_effect=FileNotFoundError))
    monkeypatch.setattr(durable, "boot_id", lambda: "first")
    root = tmp_path / "shelf"
    Shelf(root).put("lost", _fill)
    (root / ".marks" / "kept").touch()
    monkeypatch.setattr(durable, "boot_id", lambda: "second")
    after = Shelf(root)
    assert not after.has("lost")
    assert not after.has("kept")  # a mark without content is not trusted
    after.put("lost", _fill)
    assert after.has("lost")


def test_synced_directory_is_used_after_a_reboot_without_a_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If `trainshed runtimes build` ended before the sync, the runtimes would be built again after a
    reboot."""
    Shelf(tmp_path).put("key", _fill)
    settle()
    monkeypatch.setattr(durable, "boot_id", lambda: "the next one")
    assert Shelf(tmp_path).has("key")


def test_moved_or_copied_directory_is_rebuilt(tmp_path: Path) -> None:
    """Environments contain their own absolute path. At a different path, the machine's Python would run, or
    imports would fail."""
    first = tmp_path / "first"
    Shelf(first).put("key", _fill)
    (tmp_path / "link").symlink_to(first)
    assert Shelf(tmp_path / "link").has("key")
    shutil.copytree(first, tmp_path / "copy")
    first.rename(tmp_path / "moved")
    for place in ("copy", "moved"):
        shelf = Shelf(tmp_path / place)
        assert not shelf.has("key")
        assert [entry.whole for entry in shelf.content()] == [False]
        shelf.put("key", _fill)
        assert shelf.has("key")


def test_next_build_removes_the_unfinished_directory_of_a_killed_builder(tmp_path: Path) -> None:
    left = tmp_path / ".drafts" / "key.dead"
    _fill(left)
    left.chmod(0o555)
    Shelf(tmp_path).put("key", _fill)
    assert os.listdir(tmp_path / ".drafts") == []  # noqa: PTH208 -- names are what is compared


def test_directory_requested_by_two_services_at_once_is_built_once(tmp_path: Path) -> None:
    built: list[Path] = []
    entered, go = threading.Event(), threading.Event()

    def fill(draft: Path) -> None:
        built.append(draft)
        entered.set()
        assert go.wait(60)
        _fill(draft)

    # Two shelves on one directory share only the lock file, like two processes.
    threads = [threading.Thread(target=Shelf(tmp_path).put, args=("key", fill)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert entered.wait(60)
    go.set()
    for thread in threads:
        thread.join(60)
    assert len(built) == 1
    assert Shelf(tmp_path).has("key")


def test_directory_is_usable_while_the_last_build_step_still_runs(tmp_path: Path) -> None:
    """The last step compiles the environment and takes most of the build time, so programs start before it.
    The next service completes an interrupted step."""
    shelf, calls = Shelf(tmp_path), list[str]()
    has_started, may_end = threading.Event(), threading.Event()

    def interrupt(path: Path) -> None:
        calls.append("interrupted")
        has_started.set()
        may_end.wait(60)
        raise BuildFailed("The service is being stopped.")

    def complete(path: Path) -> None:
        calls.append("complete")
        assert (path / "inner" / "file").read_text() == "content"

    final = shelf.put("key", _fill, finish=interrupt)
    assert shelf.has("key")
    assert has_started.wait(60)
    Shelf(tmp_path).finish_all(complete)
    assert calls == ["interrupted"], "one process at a time finishes a directory"
    may_end.set()
    wait_for_builds()
    for _ in range(2):
        Shelf(tmp_path).finish_all(complete)
    assert calls == ["interrupted", "complete"]
    remove_tree(final)
