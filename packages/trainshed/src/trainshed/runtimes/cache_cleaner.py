"""Clears the cache of what was not used for a while, and of what killed builders left; never of what a
program runs from.

No job depends on what is removed: it is built, fetched or unpacked again for the next job that needs it. What
a live replica runs from is known by the locks that its shim holds (`shelf`).
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
"""Names of the cache's shelves."""
_KINDS = {
    ENVIRONMENTS: "environment",
    LAYERS: "layer",
    IMAGES: "image",
    REDUCTION: "reduction package",
}
_PACKAGES = "packages"
_SOON = 60 * 10**9
"""ns within which an entry may have been requested for a program that is about to start; such entries always
stay."""
_WHILE_BUILT = 3600 * 10**9
"""ns; longer than an installation, which reads packages, may last."""


class Removal(Struct, frozen=True):
    """An entry of the cache that is old enough to be removed."""

    kind: str
    name: str
    bytes: Bytes
    #: When it was used last, ns since the epoch.
    used: Nanos
    #: Removes it, or returns False if it is in use by now. Blocks; raises OSError.
    remove: Callable[[], bool]
    #: Why it stays nevertheless; None = it is to be removed.
    why: str | None = None


class CacheCleaner:
    """Finds what may be removed from the cache because nothing has used it since `now - older_than` (ns)."""

    def __init__(self, cache: Path, installer: Installer, *, now: Nanos, older_than: int) -> None:
        self._cache = cache
        self._before = now - max(older_than, _SOON)
        self._idle_before = now - max(older_than, _WHILE_BUILT)
        self._installer = installer

    def pieces(self) -> Iterator[Removal]:
        """Yield everything that is old enough, in the order of removal: layers before the environments below
        them."""
        layers = list(Shelf(self._cache / LAYERS).content())
        going = [self._piece(LAYERS, kept) for kept in layers if self._is_old(kept)]
        yield from going
        gone = {piece.name for piece in going if not piece.why}
        bases = {base_of(kept.path) for kept in layers if kept.whole and kept.key not in gone}
        for kept in Shelf(self._cache / ENVIRONMENTS).content():
            if self._is_old(kept):
                why = "a layer that stays lies on it" if kept.path in bases else None
                yield self._piece(ENVIRONMENTS, kept, why)
        for name in (IMAGES, REDUCTION):
            for kept in Shelf(self._cache / name).content():
                if self._is_old(kept):
                    yield self._piece(name, kept)
        yield from self._packages()

    def downloads(self) -> Iterator[Removal]:
        """Yield uv's downloads, all together and however old; nothing if an operator has named the cache
        (UV_CACHE_DIR). The bytes are those that a removal frees: files shared with environments are not
        counted."""
        root = self._cache / "uv"
        if self._installer.cache == root and root.exists():
            used = root.stat().st_mtime_ns
            yield Removal(
                "downloads", "of uv", size_of(root, alone=True), used, self._remove_downloads
            )

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
            why = "a program lives in it" if kept.whole else "it is being built"
        kind = _KINDS[shelf_name] if kept.whole else f"half-built {_KINDS[shelf_name]}"
        remove = partial(shelf.remove, kept)
        return Removal(kind, kept.key, size_of(kept.path), kept.used, remove, why)

    def _packages(self) -> Iterator[Removal]:
        """Yield packages of jobs, each alone in its directory, and half-fetched ones."""
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


def bound(cache: Path, installer: Installer, most: Bytes, now: Nanos) -> list[Removal]:
    """Remove downloads, then what was used least recently, until the cache takes at most so many bytes or
    the rest is in use, or cannot be removed; return what was removed. Blocks. Raises OSError."""
    left = size_of(cache)
    gone: list[Removal] = []
    if left <= most:
        return gone
    cleaner = CacheCleaner(cache, installer, now=now, older_than=0)
    # An environment is used with each layer on it, so that its layers come before it.
    by_use = sorted(cleaner.pieces(), key=lambda piece: piece.used)
    for piece in (*cleaner.downloads(), *by_use):
        with suppress(OSError):  # Another user's, say: `trainshed runtimes gc` tells of it.
            if not piece.why and piece.remove():
                gone.append(piece)
                left -= piece.bytes
                # Files have further names in other pieces, which keep them.
                if left <= most and (left := size_of(cache)) <= most:
                    break
    return gone


def _unlink(path: Path, root: Path) -> bool:
    path.unlink(missing_ok=True)
    if path.parent != root:
        with suppress(OSError):  # The same content has another name there as well.
            path.parent.rmdir()
    return True
