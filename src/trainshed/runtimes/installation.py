"""The ways in which a job's packages get installed: at once, by wheels, or thoroughly; the cheapest that works.

uv's own cache is shared by all jobs, so it is written to only where no script of a user runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainshed.runtimes.confinement import Confinement
from trainshed.runtimes.install_failed import InstallFailed
from trainshed.runtimes.installer import Installer
from trainshed.runtimes.packages import Package, builds_plainly
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
            self._offline()
        except InstallFailed:
            self.progress("What the runtime has will not do; the package index is asked as well.")
            what = self._paths()
            try:
                what = [self._wheel(path) for path in what]
                self._from_wheels(what)
            except InstallFailed:
                # What they need has to be built as well, or one project came twice, or they are no good. uv has said
                # "error": without a word more it would read as the end.
                self.progress("Wheels alone will not do; what has none is built from its source.")
                self._thoroughly(what)

    def _offline(self) -> None:
        """All of it by one installer, apart, with nothing but what is here."""
        sources = [path for path in self._paths() if path.suffix != ".whl"]
        plain = ["--no-build-isolation"] if all(map(builds_plainly, sources)) else []
        self._install(["--offline", *plain], self._paths(), tell=False)

    def _wheel(self, path: Path) -> Path:
        """The package as a wheel, built apart if it is none."""
        if path.suffix == ".whl":
            return path
        python, apart = self.prefix.executable, self.apart
        plain = ["--offline", "--no-build-isolation"] if builds_plainly(path) else []
        self.installer.wheel(python, path, plain, apart=apart, stop=self.stop)
        found = [wheel for wheel in apart.wheels.glob("*.whl") if is_file(wheel)]
        if not found:
            raise InstallFailed(("The build has left no wheel.",))
        return max(found, key=lambda wheel: wheel.stat().st_mtime_ns)

    def _from_wheels(self, wheels: Sequence[Path]) -> None:
        """What they need taken from wheels as well, by an installer that runs no script."""
        what = ["--only-binary", ":all:", *map(str, dict.fromkeys(wheels))]
        site, python = self.prefix.site, self.prefix.executable
        self.installer.install(python, site, what, self.progress, stop=self.stop)
        # Every start of a Python there runs what they have put into path files.
        self.installer.compile(python, site, self.progress, self.apart)

    def _thoroughly(self, what: Sequence[Path]) -> None:
        try:
            self._install([], what)
        except InstallFailed as failure:
            if "conflicting URLs" not in str(failure):
                raise
            # The same project twice: one after the other, the later one stays (SPEC §3: in order).
            for path in what:
                self._install([], [path])

    def _install(self, flags: Sequence[str], what: Sequence[Path], *, tell: bool = True) -> None:
        told = self.progress if tell else _say_nothing
        site, python = self.prefix.site, self.prefix.executable
        command = ["--compile-bytecode", *flags, *map(str, what)]
        self.installer.install(python, site, command, told, stop=self.stop, apart=self.apart)

    def _paths(self) -> list[Path]:
        return [package.path for package in self.packages]


def _say_nothing(line: str) -> None:
    """Progress of an attempt that may well fail is no news."""
