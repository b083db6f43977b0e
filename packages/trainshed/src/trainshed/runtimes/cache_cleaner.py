"""Removes unused entries from the cache, and files that killed builders left. Never removes an entry that a
program uses.

No job depends on a removed entry, because the next job that needs it builds, fetches or unpacks it again.
Shims lock the entries that live replicas use (`shelf`).
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from trainshed.core.units import Bytes, Nanos
from trainshed.runtimes.installer import Installer, InstallFailed
from trainshed.runtimes.prefix import base_of
from trainshed.runtimes.shelf import Shelf, ShelfEntry
from trainshed.runtimes.trees import BLOCK, size_of

ENVIRONMENTS, LAYERS, IMAGES, REDUCTION = "environments", "layers", "images", "reduction"
"""Names of the cache's shelves, which are directories of finished directories (`shelf`)."""
_KINDS = {ENVIRONMENTS: "environment", LAYERS: "layer", IMAGES: "image", REDUCTION: "reduction package"}
_PACKAGES = "packages"
_MIN_AGE = 60 * 10**9
"""Minimum age in ns of an entry that may be removed. A program that is about to start may need a younger
entry."""
_MIN_PACKAGE_AGE = 3600 * 10**9
"""Minimum age in ns of a package that may be removed. It exceeds the maximum duration of an installation,
which reads packages."""


class Removal(Struct, frozen=True):
    """An entry of the cache that is old enough to be removed."""

    kind: str
    name: str
    bytes: Bytes
    #: Time of the last use, in ns since the epoch.
    used: Nanos
    #: Removes the entry, or returns False if the entry is in use. Blocks; raises OSError.
    remove: Callable[[], bool]
    #: The reason to keep the entry; None = it may be removed.
    why: str | None = None


class CacheCleaner:
    """Finds the entries of the cache that have not been used since `now - older_than` (ns)."""

    def __init__(self, cache: Path, installer: Installer, *, now: Nanos, older_than: int) -> None:
        self._cache = cache
        self._before = now - max(older_than, _MIN_AGE)
        self._idle_before = now - max(older_than, _MIN_PACKAGE_AGE)
        self._installer = installer

    def old_entries(self) -> Iterator[Removal]:
        """Yield all old entries in the order of their removal: layers (jobs' packages) before the
        environments below them."""
        layers = list(Shelf(self._cache / LAYERS).content())
        going = [self._piece(LAYERS, kept) for kept in layers if self._is_old(kept)]
        yield from going
        gone = {piece.name for piece in going if not piece.why}
        bases = {base_of(kept.path) for kept in layers if kept.whole and kept.key not in gone}
        for kept in Shelf(self._cache / ENVIRONMENTS).content():
            if self._is_old(kept):
                why = "it is the base of a layer that is kept" if kept.path in bases else None
                yield self._piece(ENVIRONMENTS, kept, why)
        for name in (IMAGES, REDUCTION):
            for kept in Shelf(self._cache / name).content():
                if self._is_old(kept):
                    yield self._piece(name, kept)
        yield from self._packages()

    def downloads(self) -> Iterator[Removal]:
        """Yield uv's downloads as one entry, regardless of their age. Yields nothing if an operator has set
        UV_CACHE_DIR. The size is the number of bytes that a removal frees, without shared files."""
        root = self._cache / "uv"
        if self._installer.cache == root and root.exists():
            used = root.stat().st_mtime_ns
            yield Removal("downloads", "of uv", size_of(root, alone=True), used, self._remove_downloads)

    def _remove_downloads(self) -> bool:
        try:
            self._installer.clear_cache()
        except InstallFailed:
            return False
        return True

    def _is_old(self, kept: ShelfEntry) -> bool:
        return kept.used < self._before or not kept.whole

    def _piece(self, shelf_name: str, kept: ShelfEntry, why: str | None = None) -> Removal:
        shelf = Shelf(self._cache / shelf_name)
        if why is None and shelf.is_held(kept):
            why = "a program uses it" if kept.whole else "it is being built"
        kind = _KINDS[shelf_name] if kept.whole else f"half-built {_KINDS[shelf_name]}"
        remove = partial(shelf.remove, kept)
        return Removal(kind, kept.key, size_of(kept.path), kept.used, remove, why)

    def _packages(self) -> Iterator[Removal]:
        """Yield the packages of jobs, each in its own directory, and partly fetched packages."""
        root = self._cache / _PACKAGES
        whole = [path for path in root.glob("*/*") if not path.parent.name.startswith(".")]
        drafts = [path for path in root.glob(".*") if path.is_file()]
        for path in (*sorted(whole), *sorted(drafts)):
            stat = path.stat()
            if stat.st_mtime_ns < self._idle_before:
                kind = "package" if path.parent != root else "half-fetched package"
                remove = partial(_unlink, path, root)
                size = Bytes(stat.st_blocks * BLOCK)
                yield Removal(kind, path.name, size, Nanos(stat.st_mtime_ns), remove)


def limit_size(cache: Path, installer: Installer, most: Bytes, now: Nanos) -> list[Removal]:
    """Reduce the cache to at most `most` bytes: remove downloads first, then the least recently used entries.
    Skip entries that are in use or cannot be removed. Return the removed entries. Blocks. Raises OSError."""
    left = size_of(cache)
    gone: list[Removal] = []
    if left <= most:
        return gone
    cleaner = CacheCleaner(cache, installer, now=now, older_than=0)
    # The sort is stable, so layers (jobs' packages) remain before the environments below them. Both are used
    # together, and often have the same time of last use.
    by_use = sorted(cleaner.old_entries(), key=lambda piece: piece.used)
    for piece in (*cleaner.downloads(), *by_use):
        # Skip an entry that cannot be removed, for example because it belongs to another user. `trainshed
        # runtimes gc` reports the error.
        with suppress(OSError):
            if not piece.why and piece.remove():
                gone.append(piece)
                left -= piece.bytes
                # Measure the cache again, because other entries may contain hard links to the removed files.
                if left <= most and (left := size_of(cache)) <= most:
                    break
    return gone


def _unlink(path: Path, root: Path) -> bool:
    path.unlink(missing_ok=True)
    if path.parent != root:
        # The directory may also contain the same content under another name. Then `rmdir` fails, and the
        # directory remains.
        with suppress(OSError):
            path.parent.rmdir()
    return True
