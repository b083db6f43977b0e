"""The ways in which a job's packages get installed: at once, by wheels, or thoroughly; the cheapest that
works.

uv's own cache is shared by all jobs, so it is written to only where no script of a user runs, nor has left
anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainshed.runtimes.confinement import Confinement
from trainshed.runtimes.install_failed import InstallFailed
from trainshed.runtimes.installer import Installer
from trainshed.runtimes.packages import Package
from trainshed.runtimes.port import Progress
from trainshed.runtimes.prefix import Prefix
from trainshed.runtimes.stopping import Stop
from trainshed.runtimes.trees import is_file

_PLAIN = "--no-build-isolation"
"""For what the runtime's own setuptools build."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Of a job's packages into the prefix of its layer. Everything runs `apart`: scripts of users may write
    to the prefix and the room. `renew`: makes the prefix, and the room in it, as they were before the first
    of them ran."""

    installer: Installer
    prefix: Prefix
    packages: tuple[Package, ...]
    apart: Confinement
    renew: Callable[[], None]
    progress: Progress
    stop: Stop | None

    def run(self) -> None:
        """Do it, in the cheapest way that works. Blocks. Raises InstallFailed, BuildFailed."""
        try:
            # Most jobs need nothing but the base. They must not wait for an index, nor fail without one.
            self._install(["--offline"], self._paths(), plain=(_PLAIN,), tell=False)
        except InstallFailed as failure:
            if failure.is_final:
                raise
        else:
            return
        self.progress("What the runtime has will not do; the package index is asked as well.")
        # A script may have left what every Python there would run: also the one that writes to the cache of
        # all.
        self.renew()
        what = self._paths()
        try:
            what = [self._wheel(path) for path in what]
            self._from_wheels(what)
        except InstallFailed as failure:
            if failure.is_final:
                raise
            # What they need has to be built as well, or one project came twice, or they are no good. uv has
            # said "error": without a word more it would read as the end.
            self.progress("Wheels alone will not do; what has none is built from its source.")
            self._thoroughly(what)

    def _wheel(self, path: Path) -> Path:
        """The package as a wheel, built apart if it is none."""
        if path.suffix == ".whl":
            return path
        apart = replace(
            self.apart,
            writable=(),
            archives=(str(path),),
            when_plain=("--offline", _PLAIN),
        )
        self.installer.wheel(self.prefix.executable, path, apart=apart, stop=self.stop)
        found = [wheel for wheel in apart.wheels.glob("*.whl") if is_file(wheel)]
        if not found:
            raise InstallFailed(("The build has left no wheel.",))
        return max(found, key=lambda wheel: wheel.stat().st_mtime_ns)

    def _from_wheels(self, wheels: Sequence[Path]) -> None:
        """What they need taken from wheels as well, by an installer that runs no script, and opens what
        strangers made."""
        paths = list(map(str, dict.fromkeys(wheels)))
        what = ["--only-binary", ":all:", *paths]
        site, python = self.prefix.site, self.prefix.executable
        room = f"{self.apart.room}-wheels"
        apart = replace(
            self.apart,
            room=room,
            shown=(*self.apart.shown, self.apart.room, *self.installer.secrets),
            archives=tuple(paths),
            cache=str(self.installer.cache),
        )
        apart.prepare()
        self.installer.cache.mkdir(parents=True, exist_ok=True)
        self.installer.install(python, site, what, self.progress, stop=self.stop, apart=apart)
        # Every start of a Python there runs what they have put into path files.
        self.installer.compile(python, site, self.progress, self.apart)

    def _thoroughly(self, what: Sequence[Path]) -> None:
        try:
            self._install([], what)
        except InstallFailed as failure:
            if "conflicting URLs" not in str(failure):
                raise
            # The same project twice: one after the other, the later one stays (spec/program#arguments: in
            # order).
            for path in what:
                self._install([], [path])

    def _install(
        self,
        flags: Sequence[str],
        what: Sequence[Path],
        *,
        plain: tuple[str, ...] = (),
        tell: bool = True,
    ) -> None:
        told = self.progress if tell else _say_nothing
        site, python = self.prefix.site, self.prefix.executable
        paths = tuple(map(str, what))
        apart = replace(self.apart, archives=paths, when_plain=plain)
        command = ["--compile-bytecode", *flags, *paths]
        self.installer.install(python, site, command, told, stop=self.stop, apart=apart)

    def _paths(self) -> list[Path]:
        return [package.path for package in self.packages]


def _say_nothing(line: str) -> None:
    """Progress of an attempt that may well fail is no news."""
