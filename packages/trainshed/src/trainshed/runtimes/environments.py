"""Builds base environments: one for each release of a framework family (such as TensorFlow) and each
interpreter. All jobs share them. Their names identify their content."""

import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from trainshed.core.runtime import RuntimeChoice
from trainshed.runtimes.families import Release, Sheet, format_minor, parse_minor, sheet_of
from trainshed.runtimes.installer import Installer, InstallFailed
from trainshed.runtimes.interpreters import Interpreter, Interpreters
from trainshed.runtimes.port import BuildFailed
from trainshed.runtimes.prefix import Prefix, make_prefix, move_scripts, write_command, write_template
from trainshed.runtimes.shelf import Shelf
from trainshed.runtimes.torch_extensions import remove_unusable_extensions
from trainshed.runtimes.trees import let_read, let_write, size_of

_LOAD = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
_LAYOUT = "4"
"""Version of the layout of environments. Every change to the layout increases it, so that older environments
are not used."""

_DISTUTILS_HOOK = "distutils-precedence.pth"
_CONTENT = "content.txt"
"""File with one line `name==version` for each distribution of an environment."""
_SIZE = "size.txt"
"""File with the size of the environment on disk, in bytes."""


class Base(Struct, frozen=True):
    """One base environment: a release of a framework family (such as TensorFlow 2.15) on one interpreter. It
    may or may not be built."""

    sheet: Sheet
    release: Release
    interpreter: Interpreter
    #: The location of the environment after its build. The directory's name identifies the content.
    prefix: Prefix
    #: The directory of the environment, and those of its interpreter.
    places: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.prefix.root.name


class Environments:
    def __init__(self, root: Path, installer: Installer, now: Callable[[], int]) -> None:
        """`now`: clock in nanoseconds, used only for durations in progress lines."""
        self._shelf = Shelf(root)
        self._installer = installer
        self._now = now
        #: Environments by framework family, version and Python.
        self._resolved: dict[tuple[str, str, str], Base] = {}

    def resolve(self, choice: RuntimeChoice, interpreters: Interpreters) -> Base:
        """Return the environment for a choice. It is computed once and then remembered. Raises BuildFailed if
        the choice's runtime no longer exists."""
        key = choice.family, choice.version, choice.python_version
        if (known := self._resolved.get(key)) is not None:
            return known
        sheet = sheet_of(choice.family)
        release = sheet.release(choice.version) if sheet else None
        python = parse_minor(choice.python_version)
        interpreter = interpreters.get(python) if python else None
        if sheet is None or release is None or interpreter is None:
            raise BuildFailed(
                f"The runtime {choice.family} {choice.version} on Python {choice.python_version} does not "
                "exist here any more: its family or its interpreter was removed. Submit the job again."
            )
        base = self._resolved[key] = self.base(sheet, release, interpreter)
        return base

    def base(self, sheet: Sheet, release: Release, interpreter: Interpreter) -> Base:
        """Return the environment of a release on an interpreter. Its key identifies the layout, the
        interpreter, the lock, the platform and the command of the framework family."""
        parts = {
            "layout": _LAYOUT,
            "interpreter": [interpreter.executable, ".".join(map(str, interpreter.version))],
            "lock": _digest(sheet.lock(release)),
            "platform": [platform.system(), platform.machine()],
            "command": _digest(sheet.command) if sheet.command else "",
        }
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
        python = format_minor(interpreter.minor)
        key = f"{sheet.family}-{release.version or 'plain'}-py{python}-{digest}"
        prefix = Prefix(self._shelf.path(key), python)
        places = (str(prefix.root), *interpreter.places)
        return Base(sheet, release, interpreter, prefix, places)

    def record_use(self, environment: Prefix) -> None:
        """Record that a program in the environment, or in a layer (a job's packages) on top of it, is about
        to start."""
        self._shelf.record_use(environment.root.name)

    def last_used(self, environment: Prefix) -> int:
        """Return the time of the environment's last use, in ns since the epoch. Raises OSError."""
        return self._shelf.last_used(environment.root.name)

    def size(self, environment: Prefix) -> int:
        """Return the size of the environment on disk, in bytes."""
        return int((environment.root / _SIZE).read_text())

    def has(self, base: Base) -> bool:
        """Whether the environment is built and the standard library of its interpreter still exists. Fast."""
        return self._shelf.has(base.key) and (base.prefix.library / "os.py").exists()

    def build(self, base: Base, progress: Callable[[str], None], *, in_background: bool = True) -> None:
        """Build the environment unless it exists. Blocks for seconds to minutes. If it raises BuildFailed, it
        leaves no files. `in_background`: return as soon as programs can run in the environment, and compile
        most modules later."""
        sheet, release, interpreter = base.sheet, base.release, base.interpreter
        final, key = base.prefix, base.key

        def fill(draft: Path) -> None:
            started = self._now()
            title = f"{sheet.title} {release.version}".strip()
            size = f" ({release.space})" if release.space else ""
            progress(f"Building the environment {title} on Python {final.python}{size}, once for all jobs.")
            prefix = make_prefix(draft, interpreter)
            self._install(prefix, sheet, release, progress)
            remove_unusable_extensions(prefix.site)
            move_scripts(prefix)
            if sheet.command is not None:
                write_command(prefix, sheet.family, sheet.command.read_text())
            if interpreter.minor < (3, 12):
                # Remove setuptools' start-up hook for distutils, which delays every start by almost a
                # millisecond. These Pythons contain distutils, so the hook is unnecessary.
                (prefix.site / _DISTUTILS_HOOK).unlink(missing_ok=True)
            for name in release.excluded:
                metadata = prefix.excluded_metadata / f"{name.replace('-', '_')}-0.dist-info" / "METADATA"
                metadata.parent.mkdir(parents=True)
                metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
            write_template(prefix, final)
            let_read(prefix.template)
            (draft / _CONTENT).write_text("".join(f"{line}\n" for line in _distributions(prefix)))
            progress("Importing the main modules once, to check and to compile them.")
            modules = dict.fromkeys((*sheet.imports, *sheet.preloads))
            command = [str(prefix.executable), "-I", "-c", _LOAD, *modules]
            self._installer.run(command, prefix.root, progress, "importing the modules")
            if not in_background:
                self._installer.compile(prefix.executable, prefix.site, progress)
            (draft / _SIZE).write_text(str(size_of(draft)))
            progress(f"The environment {title} is built in {(self._now() - started) / 1e9:.1f} s.")

        try:
            closing = self._installer.closing
            self._shelf.put(
                key, fill, finish=self._compile, writable="template", progress=progress, stop=closing
            )
        except InstallFailed as failure:
            raise BuildFailed(
                f"The runtime {key} could not be built. The installer's last "
                f"lines:\n{failure}\n{failure.remedy}"
            ) from failure
        except OSError as failure:
            raise BuildFailed(
                f"The runtime {key} could not be written: {failure}. Check the disk and the"
                " permissions of the cache directory, or choose another one with $TRAINSHED_CACHE."
            ) from failure

    def compile_all(self) -> None:
        """Compile environments whose compilation was interrupted when a service exited. Blocks."""
        self._shelf.finish_all(self._compile)

    def _compile(self, root: Path) -> None:
        """Compile all modules of a built environment to bytecode. The priority is the lowest one, because
        programs may already run in the environment. Raises BuildFailed, OSError."""
        for library in root.glob("lib/python3*"):
            prefix = Prefix(root, library.name.removeprefix("python"))
            with let_write(prefix.site):
                self._installer.compile(prefix.executable, prefix.site, in_background=True)
        size = root / _SIZE
        size.chmod(0o644)
        size.write_text(str(size_of(root)))
        size.chmod(0o444)

    def _install(
        self, prefix: Prefix, sheet: Sheet, release: Release, progress: Callable[[str], None]
    ) -> None:
        lock = str(sheet.lock(release))

        def install(*what: str) -> None:
            target = prefix.site
            # Users' scripts never run with write access to this directory, so its files may be hard links
            # into uv's cache.
            self._installer.install(prefix.executable, target, what, progress, linked=True)

        if not release.first:
            install("--no-deps", "--requirement", lock)
            return
        # Do not pin the framework's build (CPU or CUDA). The installer uses the build on the index, and that
        # build determines its dependencies.
        pinned = ("--constraint", lock, *sheet.asks_for(release), *sheet.built_from(release))
        if self._installer.has_indexes:
            install(*pinned)
            return
        try:
            install(*release.first, *pinned)
        except InstallFailed as failure:
            flags = " ".join(release.first)
            progress(f"{failure.lines[-1] if failure.lines else ''} (with {flags}; without it now)")
            install(*pinned)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _distributions(prefix: Prefix) -> list[str]:
    names = (metadata.name.removesuffix(".dist-info") for metadata in prefix.site.glob("*.dist-info"))
    pairs = (name.partition("-") for name in names)
    return sorted(f"{name.replace('_', '-').lower()}=={version}" for name, _, version in pairs)
