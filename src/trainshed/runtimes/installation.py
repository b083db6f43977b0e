"""The ways in which a job's packages get installed: at once, by wheels, or thoroughly; the cheapest that works.

uv's own cache is shared by all jobs, so it is written to only where no script of a user runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainshed.runtimes.confinement import Confinement
from trainshed.runtimes.installer import Installer, InstallFailed
from trainshed.runtimes.packages import Package, plain_build_name, requirement
from trainshed.runtimes.port import Progress
from trainshed.runtimes.prefix import Prefix
from trainshed.runtimes.stopping import Stop
from trainshed.runtimes.trees import is_file


@dataclass(frozen=True, slots=True)
class Installation:
    """Of a job's packages into the prefix of its layer. Scripts of users run `apart` from all else."""

    installer: Installer
    prefix: Prefix
    packages: tuple[Package, ...]
    apart: Confinement
    progress: Progress
    stop: Stop | None

    def run(self) -> None:
        """Do it, in the cheapest way that works. Blocks. Raises InstallFailed, BuildFailed."""
        try:
            # Most jobs need nothing but the base. They must not wait for an index, nor fail without one.
            self._at_once("--offline", tell=False)
        except InstallFailed:
            self.progress("What the runtime has will not do; the package index is asked as well.")
            try:
                self._by_wheels()
            except InstallFailed:
                # What they need has to be built as well, or one project came twice, or they are no good.
                self._thoroughly()

    def _at_once(self, *flags: str, tell: bool = True) -> None:
        """All of it by one installer, apart."""
        self._install([*flags, *self._flags(), *map(requirement, self.packages)], tell=tell)

    def _by_wheels(self) -> None:
        """What is theirs built apart; what they need taken from wheels, by an installer that runs no script."""
        for package in self.packages:
            if package.path.suffix != ".whl":
                plain = (
                    ["--offline", "--no-build-isolation"] if plain_build_name(package.path) else []
                )
                self.installer.wheel(
                    self.prefix.executable, package.path, plain, apart=self.apart, stop=self.stop
                )
        built = [path for path in self.apart.wheels.glob("*.whl") if is_file(path)]
        given = [package.path for package in self.packages if package.path.suffix == ".whl"]
        what = ["--only-binary", ":all:", *map(str, (*given, *sorted(built)))]
        site, python = self.prefix.site, self.prefix.executable
        self.installer.install(python, site, what, self.progress, stop=self.stop)
        # Every start of a Python there runs what they have put into path files.
        self.installer.compile(python, site, self.progress, self.apart)

    def _thoroughly(self) -> None:
        try:
            self._at_once()
        except InstallFailed as failure:
            if "conflicting URLs" not in str(failure):
                raise
            # The same project twice: one after the other, the later one stays (SPEC §3: in order).
            for package in self.packages:
                self._install([*self._flags(), requirement(package)])

    def _install(self, what: Sequence[str], *, tell: bool = True) -> None:
        told = self.progress if tell else _say_nothing
        site, python = self.prefix.site, self.prefix.executable
        self.installer.install(python, site, what, told, stop=self.stop, apart=self.apart)

    def _flags(self) -> list[str]:
        flags = ["--compile-bytecode"]
        for package in self.packages:
            if name := plain_build_name(package.path):
                flags += ["--no-build-isolation-package", name]
        return flags


def _say_nothing(line: str) -> None:
    """Progress of an attempt that may well fail is no news."""
