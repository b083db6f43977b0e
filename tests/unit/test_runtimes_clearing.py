"""Tests of cleaning the cache: unused directories are removed, used ones remain
(spec/runtimes#environments)."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.caches import remove_cache
from trainshed.runtimes.cache_cleaner import CacheCleaner, Removal, limit_size
from trainshed.runtimes.installer import Installer
from trainshed.runtimes.shelf import Shelf, ShelfEntry
from trainshed.runtimes.trees import size_of

DAY = 86400 * 10**9
NOW = 2_000_000_000 * 10**9


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "cache"
    yield root
    remove_cache(root)


def _put(cache: Path, shelf: str, key: str, *, days: int, base: str = "") -> Path:
    def fill(draft: Path) -> None:
        site = draft / "lib" / "python3.11" / "site-packages"
        site.mkdir(parents=True)
        (site / "module.py").write_text("x" * 5000)
        if base:
            lies_on = cache / "environments" / base / "lib" / "python3.11" / "site-packages"
            (site / "_trainshed_base.pth").write_text(f"{lies_on}\n")

    path = Shelf(cache / shelf).put(key, fill)
    _age(path / ".built", days)
    return path


def _age(path: Path, days: int) -> None:
    at = NOW - days * DAY
    os.utime(path, ns=(at, at))


def _pieces(cache: Path) -> list[Removal]:
    installer = Installer(cache / "uv", {"PATH": "/usr/bin:/bin"})
    return list(CacheCleaner(cache, installer, now=NOW, older_than=30 * DAY).old_entries())


def test_environment_is_not_removed_from_the_cache_while_a_program_uses_it(cache: Path) -> None:
    path = _put(cache, "layers", "held", days=40)
    code = (
        "import sys; from trainshed.replica.system import cache_leases; held = "
        "cache_leases.hold_leases([sys.argv[1]]);print(len(held), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shim:
        assert shim.stdout is not None and shim.stdout.readline() == b"1\n"
        (piece,) = _pieces(cache)
        assert piece.why == "a program uses it"
        assert not piece.remove()
        # After any kind of exit.
        shim.kill()
        shim.wait()
    (piece,) = _pieces(cache)
    assert piece.why is None
    assert piece.remove()
    assert not path.exists()


def test_environment_that_is_the_base_of_a_used_layer_is_not_removed_from_the_cache(cache: Path) -> None:
    _put(cache, "environments", "under", days=40)
    _put(cache, "environments", "alone", days=40)
    _put(cache, "layers", "stays", days=1, base="under")
    _put(cache, "layers", "goes", days=40, base="alone")
    pieces = _pieces(cache)
    going = [piece.name for piece in pieces if not piece.why]
    assert going == ["goes", "alone"]  # A layer is removed before its environment.
    (kept,) = [piece for piece in pieces if piece.why]
    assert (kept.name, kept.why) == ("under", "it is the base of a layer that is kept")


def test_unfinished_builds_are_removed_from_the_cache_only_if_their_builder_is_dead(cache: Path) -> None:
    drafts = cache / "layers" / ".drafts"
    for key in ("dead", "alive"):
        (drafts / f"{key}.0123abcd" / "half").mkdir(parents=True)
    (cache / "layers" / ".locks").mkdir()
    lock = os.open(cache / "layers" / ".locks" / "alive", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    pieces = {piece.name: piece for piece in _pieces(cache)}
    assert pieces["alive"].why == "it is being built"
    assert not pieces["alive"].remove()
    assert pieces["dead"].kind == "half-built layer"
    assert pieces["dead"].remove()
    assert [path.name for path in drafts.iterdir()] == ["alive.0123abcd"]
    os.close(lock)


def test_packages_are_removed_from_the_cache_by_the_time_of_their_last_use(cache: Path) -> None:
    """Two names may have the same content. Each counts its own bytes."""
    for digest, suffix, days in (("aa", "tar.gz", 40), ("aa", "tgz", 40), ("bb", "tgz", 2)):
        package = cache / "packages" / digest / f"package.{suffix}"
        package.parent.mkdir(parents=True, exist_ok=True)
        package.write_bytes(b"x")
        _age(package, days)
    half = cache / "packages" / ".0123456789abcdef"
    half.write_bytes(b"x")
    _age(half, 40)
    pieces = _pieces(cache)
    assert [piece.kind for piece in pieces] == ["package", "package", "half-fetched package"]
    assert len({piece.bytes for piece in pieces}) == 1
    assert all(piece.remove() for piece in pieces)
    assert [path.name for path in (cache / "packages").iterdir()] == ["bb"]


def test_full_cache_removes_the_least_recently_used_entries(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that cannot be removed does not block the removal of other directories."""
    remove = Shelf.remove

    def refusing(shelf: Shelf, kept: ShelfEntry) -> bool:
        if kept.key == "another-users":
            raise PermissionError(kept.path)
        return remove(shelf, kept)

    monkeypatch.setattr(Shelf, "remove", refusing)
    _put(cache, "environments", "another-users", days=99)
    _put(cache, "environments", "under", days=2)
    _put(cache, "layers", "upper", days=2, base="under")
    _put(cache, "environments", "oldest", days=9)
    _put(cache, "environments", "newest", days=1)
    installer = Installer(cache / "uv", {"PATH": "/usr/bin:/bin"})
    whole = size_of(cache)

    def clean(most: int) -> list[str]:
        return [piece.name for piece in limit_size(cache, installer, most, NOW)]

    assert clean(whole) == []
    assert clean(whole - 1) == ["oldest"]
    # The layer is removed before its environment; used directories remain.
    descriptor = os.open(cache / "environments" / "newest" / ".built", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    assert clean(0) == ["upper", "under"]
    os.close(descriptor)
    assert clean(0) == ["newest"]


def test_downloads_are_removed_by_the_clean_command_of_uv(cache: Path, tmp_path: Path) -> None:
    archive = cache / "uv" / "archive-v0" / "abc"
    (archive / "thing-1.0.dist-info").mkdir(parents=True)
    fake = tmp_path / "uv"
    fake.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nrm -r {archive}\n')
    fake.chmod(0o755)
    installer = Installer(cache / "uv", {"PATH": "/usr/bin:/bin"}, str(fake))
    cleaner = CacheCleaner(cache, installer, now=NOW, older_than=0)
    assert list(cleaner.old_entries()) == [], "only if they are asked for"
    (piece,) = cleaner.downloads()
    assert piece.kind == "downloads"
    assert piece.remove()
    assert (tmp_path / "asked").read_text() == "cache clean\n"


def test_download_shared_with_an_environment_uses_no_space(cache: Path) -> None:
    """The reported bytes are the bytes that a removal frees."""
    archive = cache / "uv" / "archive-v0" / "abc"
    archive.mkdir(parents=True)
    (archive / "big.so").write_bytes(b"x" * 500_000)
    shared = cache / "environments" / "big.so"
    shared.parent.mkdir()
    shared.hardlink_to(archive / "big.so")
    installer = Installer(cache / "uv", {"PATH": "/usr/bin:/bin"})
    cleaner = CacheCleaner(cache, installer, now=NOW, older_than=30 * DAY)
    (piece,) = cleaner.downloads()
    assert piece.bytes < 100_000
    shared.unlink()
    (piece,) = cleaner.downloads()
    assert piece.bytes >= 500_000


def test_configured_download_cache_is_not_cleaned(cache: Path, tmp_path: Path) -> None:
    archive = cache / "uv" / "archive-v0" / "abc"
    (archive / "old_thing-1.0.dist-info").mkdir(parents=True)
    _age(archive, 40)
    shared = {"PATH": "/usr/bin:/bin", "UV_CACHE_DIR": str(tmp_path / "shared")}
    installer = Installer(cache / "uv", shared)
    assert list(CacheCleaner(cache, installer, now=NOW, older_than=30 * DAY).downloads()) == []
