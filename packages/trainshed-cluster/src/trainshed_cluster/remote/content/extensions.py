"""Fetches msgspec's extension module (compiled code) for each version of Python that a node may have. All
other code of agents is the same for all versions."""

import logging
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec

from trainshed.runtimes.installer import Installer, InstallFailed
from trainshed.runtimes.port import BuildFailed, ignore_progress

log = logging.getLogger(__name__)

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""Python versions that the service supports."""
FETCH_TIMEOUT: Final = 10.0
"""Maximum seconds to fetch the module for one version. The start of the first agent waits for all versions.
"""
_MODULE: Final = "msgspec/_core.*.so"


class Extensions:
    """msgspec's extension modules for all supported versions of Python except the service's own version.
    `cache`: the service's cache directory. `directory`: the directory that stores the modules."""

    def __init__(self, cache: Path, directory: Path) -> None:
        self._installer = Installer(cache / "uv", limit_seconds=FETCH_TIMEOUT)
        self._directory = directory / f"msgspec-{msgspec.__version__}"
        self._lock = threading.Lock()
        self._files: tuple[Path, ...] | None = None

    def files(self) -> tuple[Path, ...]:
        """Return the available modules. The first call blocks while it fetches the modules that `directory`
        lacks from the package index."""
        own = f"{sys.version_info.major}.{sys.version_info.minor}"
        with self._lock:
            if self._files is None:
                some = [self._of(version) for version in PYTHONS if version != own]
                self._files = tuple(path for paths in some for path in paths)
            return self._files

    def _of(self, version: str) -> list[Path]:
        target, draft = self._directory / version, self._directory / f".{version}"
        if not target.exists():
            pin = f"msgspec=={msgspec.__version__}"
            what = ("--python-version", version, "--only-binary", ":all:", "--no-deps", pin)
            try:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._installer.install(Path(sys.executable), draft, what, ignore_progress)
                draft.rename(target)
            except (BuildFailed, InstallFailed, OSError) as failure:
                log.warning(
                    "agents cannot run on nodes with Python %s: %s was not fetched (%s)",
                    *(version, pin, failure),
                )
        return list(target.glob(_MODULE))
