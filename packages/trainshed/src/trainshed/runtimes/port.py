"""Declares the runtimes port, which turns a chosen runtime and a job's packages into a directory from which
programs start."""

from collections.abc import Callable
from typing import BinaryIO, Protocol

from msgspec import Struct

from trainshed.core.packages import JobPackage
from trainshed.core.runtime import Image, RuntimeChoice


class PackageFailed(Exception):
    """Raised if the job's own package cannot be fetched or installed, which is an error of the user. The
    message contains the installer's last lines."""


class BuildFailed(Exception):
    """Raised if the runtime itself cannot be built here, which is a failure of the service."""


class PackageSource(Protocol):
    """Reads objects of a bucket. Both methods raise FileNotFoundError with the gs:// URI."""

    def open(self, uri: str) -> BinaryIO:
        """Open the object's content. May block; called in a worker thread."""
        ...

    def fingerprint(self, uri: str) -> str | None:
        """Return a short text that changes with the content (generation, checksum), or None if it is unknown.
        Must return immediately (one stat call), because `Runtimes.ready` calls it on the event loop."""
        ...


class PreparedRuntime(Struct, frozen=True):
    #: Directory of a tiny Python environment (interpreter link, configuration, path file) that uses the
    #: shared base and the job's packages. If it is read-only, packages that a program installs go to the
    #: program's user base. "" with an `image`.
    template: str
    #: Lines for the log about the installed packages.
    notices: tuple[str, ...] = ()
    #: Directories of console scripts. In PATH, they come after the `bin` directories of the user base and of
    #: the template.
    path: tuple[str, ...] = ()
    #: Directories to which no program may write. Permission bits do not stop root, so the replica's mount
    #: namespace should bind them read-only.
    read_only: tuple[str, ...] = ()
    #: The container image of the program; None = the program runs in `template`.
    image: Image | None = None
    #: The modules to import in advance; None = no modules.
    preloadable: "Preloadable | None" = None


class Preloadable(Struct, frozen=True):
    """The part of a runtime that is imported once and used by many programs."""

    #: Directory of the runtime's own Python environment, without packages of jobs.
    template: str
    #: Names of modules to import.
    modules: tuple[str, ...]


Progress = Callable[[str], None]
"""Receives one line about the progress of a build. Called from any thread."""


def ignore_progress(line: str) -> None:
    """Ignore a line of progress."""


class Runtimes(Protocol):
    """Builds and caches environments. All methods are idempotent, and safe for concurrent tasks."""

    def ready(self, choice: RuntimeChoice, packages: tuple[JobPackage, ...]) -> PreparedRuntime | None:
        """Return the environment if no build or fetch is necessary, otherwise None. Fast enough for the event
        loop."""
        ...

    async def prepare(
        self, choice: RuntimeChoice, packages: tuple[JobPackage, ...], progress: Progress | None = None
    ) -> PreparedRuntime:
        """Build missing parts, once for all waiting callers. Each caller receives the `progress` from the
        start of its wait. Raises PackageFailed (also for a wrong digest), BuildFailed."""
        ...

    def reduction(self) -> str | None:
        """Return the directory with the package `trainshed_reduction` for programs
        (spec/reduction#frameworks). Return None if it must be prepared first. Fast enough for the event loop.
        """
        ...

    async def prepare_reduction(self, progress: Progress | None = None) -> str:
        """Prepare the directory of `reduction`, once for all jobs, and return it. Raises BuildFailed."""
        ...
