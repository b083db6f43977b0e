"""The runtimes port: a chosen runtime and a job's packages become a directory to start programs from."""

from dataclasses import dataclass
from typing import BinaryIO, Protocol

from trainshed.core.runtime import RuntimeChoice


class PackageFailed(Exception):
    """The job's own package cannot be fetched or installed: the user's mistake. The message has the
    installer's last lines."""


class BuildFailed(Exception):
    """The runtime itself cannot be built here: the service's failure."""


class PackageSource(Protocol):
    """Reads objects of a bucket. Both methods raise FileNotFoundError with the gs:// URI."""

    def open(self, uri: str) -> BinaryIO:
        """The object's content. May block; called in a worker thread."""
        ...

    def fingerprint(self, uri: str) -> str:
        """A short text that changes whenever the content does (generation, checksum), or "" if unknown.

        Must answer at once (a stat): `Runtimes.ready` asks it on the event loop.
        """
        ...


@dataclass(frozen=True, slots=True)
class PreparedRuntime:
    """`template`: a tiny Python environment (interpreter link, configuration, path file) that sees the shared
    base and the job's packages; where it is read-only, a program's own installs go to its user base. `notices`:
    lines on what was installed, for the log. `path`: directories of console scripts, to be put on PATH after
    the user base's `bin` and the template's. `read_only`: directories that no program may write to; permission
    bits do not stop root, so the replica's mount namespace should bind them read-only."""

    template: str
    notices: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()


class Runtimes(Protocol):
    """Builds and caches environments. Every method is safe to call again and from several tasks."""

    def ready(self, choice: RuntimeChoice, package_uris: tuple[str, ...]) -> PreparedRuntime | None:
        """The environment if nothing has to be built or fetched, else None. Never blocks for long."""
        ...

    async def prepare(
        self, choice: RuntimeChoice, package_uris: tuple[str, ...]
    ) -> PreparedRuntime:
        """Build what is missing, once, however many callers wait. Raises PackageFailed, BuildFailed."""
        ...
