"""Builds layers. A layer has a job's packages on top of a base environment, without the packages of the base.

The resolver must see the packages of the base as installed, but must not be able to change the base. So a
layer starts with *ghosts*: metadata without files. There is a ghost for each distribution of the base, and
for each package that the base deliberately excludes. The installer keeps the base's versions where they fit,
and installs the difference. It can remove only ghosts, and replaces them. At the end, remaining ghosts are
removed.

All jobs share uv's own cache. A step may write to it only if it runs no users' scripts and reads no files
that such scripts left.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from trainshed.runtimes.confinement import Confinement, InstallationTerms
from trainshed.runtimes.installer import Installer, InstallFailed
from trainshed.runtimes.interpreters import Interpreter
from trainshed.runtimes.packages import Package
from trainshed.runtimes.port import BuildFailed, PackageFailed, Progress, ignore_progress
from trainshed.runtimes.prefix import Prefix, derive_prefix, move_scripts, write_template
from trainshed.runtimes.shelf import Shelf, hold
from trainshed.runtimes.stop import Stop
from trainshed.runtimes.torch_extensions import remove_unusable_extensions
from trainshed.runtimes.trees import is_file, let_read, read_small, remove_tree

_LAYOUT = "5"
_WORKSPACE = ".build"
_GHOST = "trainshed-base"
_GHOST_METADATA = ("METADATA", "WHEEL", "entry_points.txt")
_NOTICES = "notices.json"
_CALLS_GSUTIL = "calls-gsutil"
"""File that exists if files of the job's own packages mention gsutil."""
_REQUIRED = re.compile(
    r"^Requires-Dist: (?P<all>(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)[^@/\\\n]*)$", re.MULTILINE
)
"""Pattern of a requirement that an index resolves by name. Other requirements contain the URL of their
download."""
_MAX_SUMMARY = 500
"""Maximum number of distributions that are listed in one line."""


class Layers:
    def __init__(
        self, root: Path, installer: Installer, now: Callable[[], int], terms: Callable[[], InstallationTerms]
    ) -> None:
        """`now`: clock in nanoseconds, used only for durations in progress lines. `terms`: returns the terms
        for users' setup scripts. The cache is hidden from these scripts as well."""
        self._now = now
        self._shelf = Shelf(root)
        self._installer = installer
        self._hidden = str(root.parent)
        self._terms = terms

    def key(self, base: Prefix, packages: Sequence[Package], implicit: bool = False) -> str:
        """Return the name of a layer (a job's packages), which identifies its content: the base, the packages
        in their order, and `implicit`. `implicit`: the modules of the packages may import each other without
        a dot (`RuntimeChoice.implicit_imports`)."""
        parts = [_LAYOUT, base.root.name, [package.digest for package in packages]]
        text = json.dumps([*parts, "implicit"] if implicit else parts)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def find(self, base: Prefix, packages: Sequence[Package], implicit: bool = False) -> Prefix | None:
        """Return the layer (a job's packages) if it is built, otherwise None. Fast."""
        key = self.key(base, packages, implicit)
        return Prefix(self._shelf.path(key), base.python) if self._shelf.has(key) else None

    def build(
        self,
        base: Prefix,
        interpreter: Interpreter,
        packages: Sequence[Package],
        progress: Callable[[str], None],
        stop: Stop | None = None,
        *,
        implicit: bool = False,
    ) -> Prefix:
        """Build the layer (a job's packages) unless it exists. Blocks; `stop` ends it early. `implicit`: as
        for `key`. If it raises PackageFailed or BuildFailed (also after `stop`), it leaves no files."""
        key = self.key(base, packages, implicit)
        final = Prefix(self._shelf.path(key), base.python)
        uris = ", ".join(package.uri for package in packages)

        def fill(draft: Path) -> None:
            started = self._now()
            terms = self._terms()
            progress(f"Installing the job's packages at isolation level {terms.level}: {uris}.")
            prefix, ghosts = _create_prefix(draft, base, interpreter)
            apart = self._confinement(prefix, base, interpreter, packages, terms)

            def renew() -> None:
                remove_tree(prefix.root)
                _create_prefix(prefix.root, base, interpreter)
                apart.prepare()

            apart.prepare()
            try:
                Installation(
                    self._installer,
                    prefix,
                    tuple(packages),
                    apart,
                    renew,
                    lambda line: progress(_show_uris(line, packages)),
                    stop,
                ).run()
            finally:
                for workspace in prefix.root.glob(f"{_WORKSPACE}*"):
                    remove_tree(workspace)
            for ghost in prefix.site.glob("*.dist-info"):
                if not ghost.is_symlink() and read_small(ghost / "INSTALLER") == _GHOST.encode():
                    remove_tree(ghost)
            remove_unusable_extensions(prefix.site, base.site)
            if implicit:
                _search_packages_last(prefix)
            move_scripts(prefix)
            write_template(prefix, final)
            let_read(prefix.template)
            if _mentions_gsutil(prefix):
                (draft / _CALLS_GSUTIL).touch()
            summary = _summary(prefix, ghosts)
            (draft / _NOTICES).write_text(json.dumps([summary]))
            progress(summary)
            progress(f"The packages are installed in {(self._now() - started) / 1e9:.1f} s.")

        try:
            with hold(base.root):
                self._shelf.put(key, fill, writable="template", progress=progress, stop=stop)
        except InstallFailed as failure:
            if failure.is_final and not failure.is_machine_fault:
                raise PackageFailed(
                    f"The packages {uris} could not be installed. {_show_uris(failure.lines[-1], packages)}"
                ) from failure
            last_lines = f"The installer's last lines:\n{_show_uris(str(failure), packages)}"
            if failure.is_machine_fault:
                raise BuildFailed(
                    f"The packages {uris} could not be installed because of this machine or its "
                    f"network. {last_lines}\n"
                    f"{failure.remedy}"
                ) from failure
            raise PackageFailed(
                f"The packages {uris} could not be installed. {last_lines}\n{failure.correction}"
            ) from failure
        except OSError as failure:
            raise BuildFailed(
                f"The packages {uris} could not be written: {failure}. Check the disk and the"
                " permissions of the cache directory, or choose another one with $TRAINSHED_CACHE."
            ) from failure
        return final

    def notices(self, layer: Prefix) -> tuple[str, ...]:
        return tuple(json.loads((layer.root / _NOTICES).read_text()))

    def calls_gsutil(self, layer: Prefix) -> bool:
        """Whether a file of the job's own packages mentions gsutil. Fast."""
        return (layer.root / _CALLS_GSUTIL).exists()

    def record_use(self, layer: Prefix) -> None:
        self._shelf.record_use(layer.root.name)

    def _confinement(
        self,
        prefix: Prefix,
        base: Prefix,
        interpreter: Interpreter,
        packages: Sequence[Package],
        terms: InstallationTerms,
    ) -> Confinement:
        """Return the confinement for the steps of an installation. Only steps without users' scripts may
        write to uv's cache, which all jobs share."""
        return Confinement(
            workspace=str(prefix.root / _WORKSPACE),
            writable=(str(prefix.site),),
            shown=(
                *(str(prefix.root), str(base.root), *interpreter.places),
                *(str(package.path) for package in packages),
                *self._installer.needs,
            ),
            terms=replace(terms, hidden=(self._hidden, *terms.hidden)),
            name=f"trainshed-build-{prefix.root.name}",
            until=time.monotonic() + terms.seconds if terms.seconds else None,
        )


def _create_prefix(root: Path, base: Prefix, interpreter: Interpreter) -> tuple[Prefix, dict[str, str]]:
    """Create the prefix of a layer (a job's packages), which contains ghosts for the base's distributions and
    no packages. Return it with the versions of these distributions, by name."""
    prefix = derive_prefix(root, base, interpreter)
    ghosts = _add_ghosts(base, prefix)
    let_read(prefix.root)
    return prefix, ghosts


def _show_uris(text: str, packages: Sequence[Package]) -> str:
    """Replace the cache paths of packages in the installer's output with the packages' URIs."""
    for package in packages:
        for place in (package.path.as_uri(), str(package.path)):
            text = text.replace(place, package.uri)
    return text


def _add_ghosts(base: Prefix, prefix: Prefix) -> dict[str, str]:
    """Create the ghosts in `prefix`, so that the distributions of the base look installed there. Return their
    versions by name."""
    versions: dict[str, str] = {}
    for metadata in sorted((*base.site.glob("*.dist-info"), *base.excluded_metadata.glob("*.dist-info"))):
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


def _distribution(metadata: Path) -> tuple[str, str]:
    name, _, version = metadata.name.removesuffix(".dist-info").partition("-")
    return _normal(name), version


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _own_files(prefix: Prefix) -> Iterator[Path]:
    """Yield the files of the job's own packages. These are the packages that were installed from a file, not
    from an index."""
    site = prefix.site.resolve()
    for direct in prefix.site.glob("*.dist-info/direct_url.json"):
        record = (read_small(direct.with_name("RECORD")) or b"").decode(errors="replace")
        # A package may contain links to other files. The service does not follow them.
        places = (prefix.site / line.partition(",")[0] for line in record.splitlines())
        yield from (p for p in places if is_file(p) and p.resolve().is_relative_to(site))


def _mentions_gsutil(prefix: Prefix) -> bool:
    return any(b"gsutil" in (read_small(place) or b"") for place in _own_files(prefix))


def _search_packages_last(prefix: Prefix) -> None:
    """Put the directories of the job's own packages last on the module search path. Python 2 searched a
    module's own directory first. At the beginning of the search path, these directories would hide modules of
    the standard library from all other packages."""
    places = (p.parent.relative_to(prefix.site) for p in _own_files(prefix) if p.suffix == ".py")
    lines = sorted({str(place) for place in places if place.name})
    # Python reads path files in the order of their names, and this one must follow that of the base.
    (prefix.site / "_trainshed_packages.pth").write_text("".join(f"{line}\n" for line in lines))


def _summary(prefix: Prefix, base: dict[str, str]) -> str:
    installed: list[str] = []
    for metadata in sorted(prefix.site.glob("*.dist-info")):
        name, version = _distribution(metadata)
        instead = base.get(name, "")
        installed.append(f"{name} {version}" + (f" (instead of {instead})" if instead else ""))
    shown = installed[:_MAX_SUMMARY]
    if len(installed) > len(shown):
        shown.append(f"{len(installed) - len(shown)} more")
    return f"Installed on top of the runtime: {', '.join(shown) or 'nothing'}."


_PLAIN = "--no-build-isolation"
"""Flag for packages that the runtime's own setuptools can build."""


class Installation(Struct, frozen=True):
    """Installs a job's packages into the prefix (private Python) of its layer. `apart`: confines every step.
    Users' scripts may write to the prefix and the workspace."""

    installer: Installer
    prefix: Prefix
    packages: tuple[Package, ...]
    apart: Confinement
    #: Restores the prefix, and the workspace in it, to their state before the first script ran.
    renew: Callable[[], None]
    progress: Progress
    stop: Stop | None

    def run(self) -> None:
        """Install the packages by the cheapest way that succeeds: from the base only, from wheels, or from
        source. Blocks. Raises InstallFailed, BuildFailed."""
        try:
            # Try without an index first: most jobs need only the base. They must not wait for an index, nor
            # fail without one.
            self._install(["--offline"], self._paths(), plain=(_PLAIN,), tell=False)
        except InstallFailed as failure:
            if failure.is_final:
                raise
        else:
            return
        self.progress("The runtime lacks required packages. Searching the package index.")
        # A script of the first attempt may have left code that every later Python would run. A later step
        # runs Python with write access to the shared cache. So restore the original state.
        self.renew()
        what = self._paths()
        try:
            what = [self._wheel(path) for path in what]
            self._from_wheels(what)
        except InstallFailed as failure:
            if failure.is_final:
                raise
            # There are several possible causes: requirements without wheels must be built, two packages are
            # the same project, or the wheels are unusable. uv has printed "error", after which users would
            # expect the end. This line shows that the installation continues.
            self.progress("Wheels are not enough. Building the other packages from source.")
            self._install_from_source(what)
        else:
            self._replace_other_versions(what)

    def _replace_other_versions(self, wheels: Sequence[Path]) -> None:
        """Build packages from source and install again, if the installation from wheels does not have the
        newest versions. If the build fails, the installed versions remain.

        Without this method, the versions may be very old or pre-releases. If the newest version of a
        requirement depends on a package without a wheel, the installer chooses a version of the requirement
        without this dependency.
        """
        others = self._other_versions(wheels)
        if not others:
            return
        self.progress(
            f"With wheels only, it would be {', '.join(others)}. Building missing wheels from source."
        )
        self.renew()
        try:
            self._install_from_source(self._paths())
        except InstallFailed as failure:
            if failure.is_final:
                raise
            self.progress("The build failed on this machine, so these versions remain.")
            self.renew()
            self._from_wheels([self._wheel(path) for path in self._paths()])

    def _other_versions(self, wheels: Sequence[Path]) -> list[str]:
        """Return the requirements of the job's packages whose installed version is not the newest one that
        has a wheel. Each item is a text with the name and both versions."""
        own = {_distribution(wheel)[0] for wheel in wheels}
        installed: dict[str, str] = {}
        requirements: list[re.Match[str]] = []
        for metadata in self.prefix.site.glob("*.dist-info"):
            if read_small(metadata / "INSTALLER") == _GHOST.encode():
                continue
            name, version = _distribution(metadata)
            installed[name] = version
            if name in own:
                header, _, _ = (read_small(metadata / "METADATA") or b"").partition(b"\n\n")
                requirements += _REQUIRED.finditer(header.decode(errors="replace"))
        wanted = [
            requirement["all"] for requirement in requirements if _normal(requirement["name"]) in installed
        ]
        if not wanted:
            return []
        place = self.prefix.root / f"{_WORKSPACE}-newest"
        place.mkdir()
        try:
            newest = self.installer.newest(self.prefix.python, wanted, place, self.stop)
        except InstallFailed as failure:
            if failure.is_final:
                raise
            # The newest versions have no common solution, for example because two packages require different
            # versions. The installed version satisfies all requirements.
            return []
        return [
            f"{name} {installed[name]} (not {version})"
            for name, version in newest.items()
            if installed.get(name, version) != version
        ]

    def _wheel(self, path: Path) -> Path:
        """Return a wheel of the package. If the package is not a wheel, build it in confinement. Raises
        InstallFailed."""
        if path.suffix == ".whl":
            return path
        apart = replace(self.apart, writable=(), archives=(str(path),), when_plain=("--offline", _PLAIN))
        self.installer.wheel(self.prefix.executable, path, apart=apart, stop=self.stop)
        wheels = [wheel for wheel in apart.wheels.glob("*.whl") if is_file(wheel)]
        if not wheels:
            raise InstallFailed(("The build of the package has created no wheel (.whl file).",))
        return max(wheels, key=lambda wheel: wheel.stat().st_mtime_ns)

    def _from_wheels(self, wheels: Sequence[Path]) -> None:
        """Install wheels, and their requirements from wheels only. So the installer runs no script. It still
        runs in confinement, because it opens archives from untrusted authors."""
        paths = list(map(str, dict.fromkeys(wheels)))
        what = ["--only-binary", ":all:", *paths]
        site, python = self.prefix.site, self.prefix.executable
        workspace = f"{self.apart.workspace}-wheels"
        apart = replace(
            self.apart,
            workspace=workspace,
            shown=(*self.apart.shown, self.apart.workspace, *self.installer.secrets),
            archives=tuple(paths),
            corrected=True,
            cache=str(self.installer.cache),
        )
        apart.prepare()
        self.installer.cache.mkdir(parents=True, exist_ok=True)
        self.installer.install(python, site, what, self.progress, stop=self.stop, apart=apart)
        # Compile in confinement: path files in the prefix contain code that every start of that Python runs.
        self.installer.compile(python, site, self.progress, self.apart)

    def _install_from_source(self, what: Sequence[Path]) -> None:
        try:
            self._install([], what)
        except InstallFailed as failure:
            if "conflicting URLs" not in str(failure):
                raise
            # If two packages are the same project, install one after the other, so that the later one remains
            # (spec/program#arguments: in order).
            for path in what:
                self._install([], [path])

    def _install(
        self, flags: Sequence[str], what: Sequence[Path], *, plain: tuple[str, ...] = (), tell: bool = True
    ) -> None:
        progress = self.progress if tell else ignore_progress
        site, python = self.prefix.site, self.prefix.executable
        paths = tuple(map(str, what))
        apart = replace(self.apart, archives=paths, when_plain=plain)
        command = ["--compile-bytecode", *flags, *paths]
        self.installer.install(python, site, command, progress, stop=self.stop, apart=apart)

    def _paths(self) -> list[Path]:
        return [package.path for package in self.packages]
