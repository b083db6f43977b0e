"""What the installer keeps of its downloads, by package. It is cleared by uv alone, which knows whether it is being used."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from trainshed.runtimes.install_failed import InstallFailed
from trainshed.runtimes.installer import Installer
from trainshed.runtimes.sizes import size_of


class Downloads:
    """uv's cache at `root`. If an operator has named another one (UV_CACHE_DIR), that one is his own business."""

    def __init__(self, root: Path, installer: Installer) -> None:
        self._root = root
        self._installer = installer

    def content(self) -> Iterator[tuple[str, int, int]]:
        """(name, bytes, when the newest of it was fetched, ns) of every package, by name. uv notes no use. The bytes are
        those that removing it frees: what environments have as well counts as theirs."""
        if self._installer.cache != self._root:
            return
        for name, places in sorted(self._places().items()):
            times: list[int] = []
            for place in places:
                try:
                    times.append(place.stat().st_mtime_ns)
                except OSError:
                    continue
            if times:
                yield name, size_of(*places, alone=True), max(times)

    def remove(self, name: str) -> bool:
        """Have uv forget all versions of a package. Blocks while uv runs elsewhere on this cache. False if it cannot."""
        try:
            self._installer.forget(name)
        except InstallFailed:
            return False
        return name not in self._places()

    def _places(self) -> dict[str, list[Path]]:
        found: defaultdict[str, list[Path]] = defaultdict(list)
        for metadata in self._root.glob("archive-v*/*/*.dist-info"):
            name = metadata.name.partition("-")[0]
            found[re.sub(r"[-_.]+", "-", name).lower()].append(metadata.parent)
        for source in self._root.glob("sdists-v*/pypi/*"):
            found[source.name].append(source)
        return found
