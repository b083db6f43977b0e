"""Types of runtimes for other packages: the runtime of a program, whether it is the requested one,
and its optional container image.

The package `runtimes` creates the values. This module defines their types and the protocol for
validation.
"""

from typing import Protocol

from msgspec import Struct

CONTAINER = "container"
"""The family of a choice that is no environment of the service, but a container image that is run as it
is."""

REDUCERS = "reduction-server"
"""The family of this service's own reducers, which replace the reduction-server images."""


class OldWay(Struct, frozen=True):
    """A variable by which a newer framework does as the older one did that a job asked for."""

    variable: str
    value: str
    #: The variable for the opposite: where the job sets it, this one is not set.
    unless: str


class RuntimeChoice(Struct, frozen=True):
    """The runtime that a program will run in."""

    #: A folder of the package `runtimes` (`python`, `scikit-learn`), or `CONTAINER`.
    family: str
    #: The framework's version within the family; "" for plain Python.
    version: str
    #: `major.minor`.
    python_version: str
    #: Differences between the requested and the actual runtime: the first lines of the job's log
    #: and an entry on its timeline (spec/runtimes#substitutes). Empty if the job gets exactly the
    #: requested one.
    notices: tuple[str, ...] = ()
    #: For a container, the image that is run. An operator's image map may have put it in the place of the one
    #: asked for.
    image: str = ""
    #: The behaviors in which a newer framework imitates the requested one.
    old_ways: tuple[OldWay, ...] = ()
    #: Modules of the job's packages may import each other without a dot, as in Python 2.
    implicit_imports: bool = False
    #: Whether it has the requested version and Python. If not, the first notice states the
    #: difference.
    is_exact: bool = True
    #: The program's command line names gsutil, so that it is prepared beside the runtime.
    gsutil: bool = False


class RuntimeRefusal(Struct, frozen=True):
    """The reason why no runtime is a substitute, and the similar available ones."""

    reason: str


class Image(Struct, frozen=True):
    """A container image, with its own entry point, command and environment."""

    #: Directory of its unpacked root file system, which is read-only; None = the engine's cluster
    #: provides the image, and programs start inside it.
    root: str | None
    #: Identifies the content, whatever the image is called.
    digest: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    #: Working directory; None = /.
    workdir: str | None = None
    #: `USER[:GROUP]` by name or number; None = root.
    user: str | None = None
    #: Why the image's own settings could not be read, as a clause; None = they were.
    unread: str | None = None


class RuntimeCatalog(Protocol):
    """Finds the runtime for an image or a runtime version. Pure, never blocks."""

    def for_image(self, image_uri: str) -> RuntimeChoice | RuntimeRefusal:
        """Return the runtime that replaces a container image (facts/packaging#images,
        spec/runtimes#substitutes)."""
        ...

    def for_runtime_version(
        self, runtime_version: str, python_version: str
    ) -> RuntimeChoice | RuntimeRefusal:
        """Return the runtime nearest to an `ml` runtimeVersion; "" means the service's default
        (spec/submit#defaults).

        The caller has checked before, with `core.catalog`, that the pair is legal.
        """
        ...
