"""What the rest of the house knows of runtimes: which one a job gets, and whether that is what it asked for.

The package `runtimes` builds them; here are only the values and the question that validation asks.
"""

from typing import Protocol

from msgspec import Struct

CONTAINER = "container"
"""The family of a choice that is no environment of ours but a container image, run as it is."""

REDUCERS = "reduction-server"
"""The family of our own reducers, which stands for the reduction-server images."""


class RuntimeChoice(Struct, frozen=True):
    """The runtime that a program will run in."""

    #: A folder of the package `runtimes` (`python`, `scikit-learn`), or `CONTAINER`.
    family: str
    #: The framework's within it; "" for plain Python.
    version: str
    #: `major.minor`.
    python_version: str
    #: What was asked and what is given instead: the first lines of the job's log and an entry on its timeline
    #: (spec/runtimes#substitutes). Empty when the job gets exactly what it asked for.
    notices: tuple[str, ...] = ()
    #: Of a container, the reference of the image that is run, which an operator's image map may have put in
    #: the place of the one asked for.
    image: str = ""


class RuntimeRefusal(Struct, frozen=True):
    """Why no runtime can stand in, and which near ones can be had."""

    reason: str


class RuntimeCatalog(Protocol):
    """Answers which runtime stands for an image or a runtime version. Pure, never blocks."""

    def for_image(self, image_uri: str) -> RuntimeChoice | RuntimeRefusal:
        """The runtime that stands for a container image (facts/packaging#images,
        spec/runtimes#substitutes)."""
        ...

    def for_runtime_version(
        self, runtime_version: str, python_version: str
    ) -> RuntimeChoice | RuntimeRefusal:
        """The runtime nearest to an `ml` runtimeVersion; "" means the service's default
        (spec/submit#defaults).

        Whether the pair itself is legal is `core.catalog`'s question, asked before.
        """
        ...
