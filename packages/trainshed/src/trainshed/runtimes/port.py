"""Declares the runtimes port, which turns a chosen runtime and a job's packages into a directory from which
programs start."""

from collections.abc import Callable
from typing import BinaryIO, Protocol

from msgspec import Struct

from trainshed.core.packages import JobPackage
from trainshed.core.runtime import Image, RuntimeChoice


class PackageFailed(Exception):
    """The job's own package cannot be fetched or installed: the user's mistake. The message contains the
    installer's last lines."""


class BuildFailed(Exception):
    """The runtime itself cannot be built here: the service's failure."""


class PackageSource(Protocol):
    """Reads objects of a bucket. Both methods raise FileNotFoundError with the gs:// URI."""

    def open(self, uri: str) -> BinaryIO:
        """Open the object's content. May block; called in a worker thread."""
        ...

    def fingerprint(self, uri: str) -> str | None:
        """Return a short text that changes with the content (generation, checksum), or None if unknown.

        Must return immediately (a stat), because `Runtimes.ready` calls it on the event loop.
        """
        ...


class PreparedRuntime(Struct, frozen=True):
    #: Directory of a tiny Python environment (interpreter link, configuration, path file) that sees the
    #: shared base and the job's packages. If it is read-only, a program's own installs go to its user base.
    #: "" with an `image`.
    template: str
    #: Lines about the installed packages, for the log.
    notices: tuple[str, ...] = ()
    #: Directories of console scripts, for PATH after the user base's `bin` and the template's.
    path: tuple[str, ...] = ()
    #: Directories that no program may write to. Permission bits do not stop root, so the replica's mount
    #: namespace should bind them read-only.
    read_only: tuple[str, ...] = ()
    #: The container image of the program; None = it runs in `template`.
    image: Image | None = None
    #: The modules to import in advance; None = none.
    preloadable: "Preloadable | None" = None


class Preloadable(Struct, frozen=True):
    """The part of a runtime that is imported once for many programs."""

    #: Directory of the runtime's own Python environment, without packages of jobs.
    template: str
    #: Names of modules to import.
    modules: tuple[str, ...]


Progress = Callable[[str], None]
"""Accepts one line about the progress of a build; called from any thread."""


def unheard(line: str) -> None:
    """Ignore a line of progress."""


class Runtimes(Protocol):
    """Builds and caches environments. All methods are idempotent and safe for several tasks."""

    def ready(
        self, choice: RuntimeChoice, packages: tuple[JobPackage, ...]
    ) -> PreparedRuntime | None:
        """Return the environment if no build or fetch is necessary, else None. Never blocks for long."""
        ...

    async def prepare(
        self,
        choice: RuntimeChoice,
        packages: tuple[JobPackage, ...],
        progress: Progress | None = None,
    ) -> PreparedRuntime:
        """Build missing parts, once for all waiting callers. Each caller gets the `progress` from the start
        of its wait. Raises PackageFailed, also for a package that does not match its pin, and BuildFailed."""
        ...

    def reduction(self) -> str | None:
        """Return the directory with the package `trainshed_reduction` for programs
        (spec/reduction#frameworks), None if it must be prepared. Never blocks for long."""
        ...

    async def prepare_reduction(self, progress: Progress | None = None) -> str:
        """Prepare that directory, once for all jobs, and return it. Raises BuildFailed."""
        ...
