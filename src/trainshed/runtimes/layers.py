"""Layers: a job's packages on top of a base environment, with only what the base does not have already.

The resolver must see the base as installed, and must not be able to touch it. So a layer starts with *ghosts*:
metadata of each base distribution without its files. The installer keeps the base's versions where they will do
and installs the difference; a ghost that it replaces is all that it can remove. Ghosts that are left are taken away.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from trainshed.runtimes.installer import Installer, InstallFailed, Stop
from trainshed.runtimes.interpreters import Interpreter
from trainshed.runtimes.packages import Package, plain_build_name, requirement
from trainshed.runtimes.port import BuildFailed, PackageFailed
from trainshed.runtimes.prefix import Prefix, derive_prefix, take_scripts
from trainshed.runtimes.shelf import Shelf, remove_tree
from trainshed.runtimes.template import write_template

_LAYOUT = "1"
_GHOST = "trainshed-base"
_GHOST_METADATA = ("METADATA", "WHEEL", "entry_points.txt")
_NOTICES = "notices.json"


class Layers:
    """Builds layers and finds the ones that are built."""

    def __init__(self, root: Path, installer: Installer, now: Callable[[], int]) -> None:
        """`now`: nanoseconds, only for the duration in a progress line."""
        self._now = now
        self._shelf = Shelf(root)
        self._installer = installer
        self._offline_cache = root / ".uv"

    def key(self, base: Prefix, packages: Sequence[Package]) -> str:
        """The name that says what is in it: the base and the packages in their order."""
        text = json.dumps([_LAYOUT, base.root.name, [package.digest for package in packages]])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def find(self, base: Prefix, packages: Sequence[Package]) -> Prefix | None:
        """The layer if it is built. Fast."""
        key = self.key(base, packages)
        return Prefix(self._shelf.path(key), base.python) if self._shelf.has(key) else None

    def build(
        self,
        base: Prefix,
        interpreter: Interpreter,
        packages: Sequence[Package],
        progress: Callable[[str], None],
        stop: Stop | None = None,
    ) -> Prefix:
        """Build the layer unless it is there. Blocks, until `stop` is asked at the longest.

        Raises PackageFailed, BuildFailed (also if it was stopped); leaves nothing then.
        """
        key = self.key(base, packages)
        final = Prefix(self._shelf.path(key), base.python)

        def fill(draft: Path) -> None:
            started = self._now()
            prefix = derive_prefix(draft, base, interpreter)
            ghosts = _raise_ghosts(base, prefix)
            self._install(prefix, packages, progress, stop or Stop())
            _lay_ghosts(prefix)
            take_scripts(prefix)
            write_template(prefix, final)
            (draft / _NOTICES).write_text(json.dumps([_summary(prefix, ghosts)]))
            progress(f"The packages are installed in {(self._now() - started) / 1e9:.1f} s.")

        uris = ", ".join(package.uri for package in packages)
        try:
            self._shelf.put(key, fill, writable="template")
        except InstallFailed as failure:
            said = f"The installer's last lines:\n{_readable(failure, packages)}"
            if failure.is_machine_trouble:
                raise BuildFailed(
                    f"The packages {uris} could not be installed because of this machine or its network. {said}"
                ) from failure
            raise PackageFailed(
                f"The packages {uris} could not be installed. {said}\n"
                "Correct the package (its setup script and its requirements) and submit the job again."
            ) from failure
        except OSError as failure:
            raise BuildFailed(
                f"The packages {uris} could not be written: {failure}. Check the disk and the"
                " permissions of the cache directory, or choose another one with $TRAINSHED_CACHE."
            ) from failure
        return final

    def notices(self, layer: Prefix) -> tuple[str, ...]:
        """What was installed, in a line or two."""
        return tuple(json.loads((layer.root / _NOTICES).read_text()))

    def _install(
        self,
        prefix: Prefix,
        packages: Sequence[Package],
        progress: Callable[[str], None],
        stop: Stop,
    ) -> None:
        files = [requirement(package) for package in packages]
        flags = ["--compile-bytecode"]
        for package in packages:
            if name := plain_build_name(package.path):
                flags += ["--no-build-isolation-package", name]

        def install(what: Sequence[str], *, offline: bool) -> None:
            if offline:
                # A cache that never saw an index: what is not in the base cannot be had, however stale.
                what = ["--offline", "--cache-dir", str(self._offline_cache), *what]
            tell = _say_nothing if offline else progress
            self._installer.install(prefix.executable, prefix.site, what, tell, stop)

        try:
            # Most jobs need nothing but the base. They must not wait for an index, nor fail without one.
            install([*flags, *files], offline=True)
        except InstallFailed:
            try:
                install([*flags, *files], offline=False)
            except InstallFailed as failure:
                if "conflicting URLs" not in str(failure):
                    raise
                # The same project twice: one after the other, the later one stays (SPEC §3: in order).
                for file in files:
                    install([*flags, file], offline=False)


def _say_nothing(line: str) -> None:
    """Progress of an attempt that may well fail is no news."""


def _readable(failure: InstallFailed, packages: Sequence[Package]) -> str:
    """The installer's words, with the packages' own names instead of where they lie in the cache."""
    text = str(failure)
    for package in packages:
        for place in (package.path.as_uri(), str(package.path)):
            text = text.replace(place, package.uri)
    return text


def _raise_ghosts(base: Prefix, prefix: Prefix) -> dict[str, str]:
    """Make the base's distributions look installed in `prefix`. Returns their names with versions."""
    versions: dict[str, str] = {}
    for metadata in sorted(base.site.glob("*.dist-info")):
        ghost = prefix.site / metadata.name
        ghost.mkdir()
        present = [name for name in _GHOST_METADATA if (metadata / name).exists()]
        for name in present:
            (ghost / name).symlink_to(metadata / name)
        (ghost / "INSTALLER").write_text(_GHOST)
        files = (*present, "INSTALLER", "RECORD")
        (ghost / "RECORD").write_text("".join(f"{metadata.name}/{name},,\n" for name in files))
        name, version = _distribution(metadata)
        versions[name] = version
    return versions


def _lay_ghosts(prefix: Prefix) -> None:
    for ghost in prefix.site.glob("*.dist-info"):
        installer = ghost / "INSTALLER"
        if installer.exists() and installer.read_text() == _GHOST:
            remove_tree(ghost)


def _distribution(metadata: Path) -> tuple[str, str]:
    name, _, version = metadata.name.removesuffix(".dist-info").partition("-")
    return re.sub(r"[-_.]+", "-", name).lower(), version


def _summary(prefix: Prefix, base: dict[str, str]) -> str:
    installed: list[str] = []
    for metadata in sorted(prefix.site.glob("*.dist-info")):
        name, version = _distribution(metadata)
        instead = base.get(name, "")
        installed.append(f"{name} {version}" + (f" (instead of {instead})" if instead else ""))
    return f"Installed on top of the runtime: {', '.join(installed) or 'nothing'}."
