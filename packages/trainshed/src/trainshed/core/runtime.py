"""Types for runtimes: the runtime of a program, its differences from the requested one, and the container
image of a program.

The package `runtimes` creates the values. This module also defines the interface of the runtime catalog for
the validation of requests.
"""

from typing import Protocol

from msgspec import Struct

CONTAINER = "container"
"""The value of `RuntimeChoice.family` for a program that runs in a container image instead of an environment
of the service."""

REDUCERS = "reduction-server"
"""The value of `RuntimeChoice.family` for this service's own reducers, which replace the reduction-server
images."""


class OldWay(Struct, frozen=True):
    """A variable that makes a newer framework behave like the requested older version."""

    variable: str
    value: str
    #: The variable for the opposite behavior. If a job sets that variable, this one is not set.
    unless: str


class RuntimeChoice(Struct, frozen=True):
    """The runtime of a program."""

    #: A folder of the package `runtimes` (`python`, `scikit-learn`), or `CONTAINER`.
    family: str
    #: The framework's version, or "" for plain Python.
    version: str
    #: The version of Python as `major.minor`.
    python_version: str
    #: Differences between the requested and the actual runtime: the first lines of the job's log and an entry
    #: on its timeline (spec/runtimes#substitutes). Empty if the job receives exactly the requested runtime.
    notices: tuple[str, ...] = ()
    #: For a container, the image to run. An operator's image map may have replaced the requested image.
    image: str = ""
    #: The variables that make a newer framework behave like the requested one.
    old_ways: tuple[OldWay, ...] = ()
    #: Whether modules of the job's packages may import each other without a dot, as in Python 2.
    implicit_imports: bool = False
    #: Whether the runtime has the requested version and Python. If not, the first notice states the
    #: difference.
    is_exact: bool = True
    #: Whether the program's command line contains gsutil, which is then installed in addition to the runtime.
    gsutil: bool = False


class RuntimeRefusal(Struct, frozen=True):
    """The reason why no runtime can replace a requested one, and similar available ones."""

    reason: str


class Image(Struct, frozen=True):
    """A container image with its ENTRYPOINT, CMD and environment."""

    #: Directory of the unpacked, read-only root file system. None if the engine's cluster provides the image
    #: and programs start inside it.
    root: str | None
    #: A digest that identifies the content of the image, independent of its name.
    digest: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    #: The image's working directory, or None for /.
    workdir: str | None = None
    #: The image's user as `USER[:GROUP]` by name or number, or None for root.
    user: str | None = None
    #: Why the settings of the image are unknown, as a clause. None if they are known.
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
        """Return the runtime that is most similar to an `ml` runtimeVersion, or the service's default for ""
        (spec/submit#defaults). The caller must have validated the two versions with `core.catalog`."""
        ...


class ServiceCatalog(RuntimeCatalog, Protocol):
    """The runtimes of a service, also by family."""

    def for_family(
        self, family: str, version: str | None = None, python: str | None = None
    ) -> RuntimeChoice | RuntimeRefusal:
        """Return a family's release of a version on a Python, or the nearest available one. None selects the
        newest version, or the preferred Python."""
        ...

    def is_mapped(self, image_uri: str) -> bool:
        """Return whether the operator's image map has an entry for the image."""
        ...
