"""The runtimes port: a chosen runtime and a job's packages become a directory to start programs from."""

from collections.abc import Callable
from typing import BinaryIO, Protocol

from msgspec import Struct

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


class Image(Struct, frozen=True):
    """A container image. Entry point, command and environment are as the image says."""

    #: Directory of its root file system, unpacked, which nobody may write to; "" = programs are in it
    #: already, wherever they start: their engine's cluster brings it.
    root: str
    #: What it is, whatever it is called.
    digest: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    #: "" = /.
    workdir: str = ""
    #: `USER[:GROUP]` by name or number; "" = root.
    user: str = ""
    #: Why it is not known what the image says, as a clause; "" = it is.
    unread: str = ""


class PreparedRuntime(Struct, frozen=True):
    """What a program is started in."""

    #: A tiny Python environment (interpreter link, configuration, path file) that sees the shared base and
    #: the job's packages; where it is read-only, a program's own installs go to its user base. "" with an
    #: `image`.
    template: str
    #: Lines on what was installed, for the log.
    notices: tuple[str, ...] = ()
    #: Directories of console scripts, to be put on PATH after the user base's `bin` and the template's.
    path: tuple[str, ...] = ()
    #: Directories that no program may write to; permission bits do not stop root, so the replica's mount
    #: namespace should bind them read-only.
    read_only: tuple[str, ...] = ()
    #: The program runs in this container image instead; None = it does not.
    image: Image | None = None
    #: None = nothing can be imported ahead.
    preloadable: "Preloadable | None" = None


class Preloadable(Struct, frozen=True):
    """What of a runtime can be imported once for many programs."""

    #: Directory of the runtime's own Python environment, without packages of jobs.
    template: str
    #: Names of modules.
    modules: tuple[str, ...]


Progress = Callable[[str], None]
"""Takes one line of what a build does at a time; called from any thread."""


class Runtimes(Protocol):
    """Builds and caches environments. Every method is safe to call again and from several tasks."""

    def ready(self, choice: RuntimeChoice, package_uris: tuple[str, ...]) -> PreparedRuntime | None:
        """The environment if nothing has to be built or fetched, else None. Never blocks for long."""
        ...

    async def prepare(
        self,
        choice: RuntimeChoice,
        package_uris: tuple[str, ...],
        progress: Progress | None = None,
    ) -> PreparedRuntime:
        """Build what is missing, once, however many callers wait; each of them is told the `progress` from
        the moment on at which it began to wait. Raises PackageFailed, BuildFailed."""
        ...

    def reduction(self) -> str | None:
        """Directory in which programs find the package `trainshed_reduction` (spec/reduction#frameworks),
        None if it has to be prepared. Never blocks for long."""
        ...

    async def prepare_reduction(self, progress: Progress | None = None) -> str:
        """Put that directory together, once for all jobs. Raises BuildFailed."""
        ...


class ImageSupport(Protocol):
    """What this service can do with container images."""

    def refusal(self, reference: str) -> str:
        """ "" if a program can be run in that image here; else why not and what to do about it, as whole
        sentences.

        Never blocks: answers from what was found at the start.
        """
        ...


class ContainerImages(ImageSupport, Protocol):
    """Where the images of jobs come from."""

    def search(self) -> None:
        """Look for what it needs in the background."""
        ...

    def close(self) -> None:
        """Kill what is under way and start nothing more. Stop the callers of `prepare` first."""
        ...

    def ready(self, reference: str) -> Image | None:
        """The image if nothing has to be done or asked for it, else None. Never blocks for long."""
        ...

    async def prepare(self, reference: str, progress: Progress | None) -> Image:
        """Do what is missing, once, however many callers wait. Raises PackageFailed, BuildFailed."""
        ...
