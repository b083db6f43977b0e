"""The data sheet of a runtime family: which versions there are, on which Pythons, and what they hold."""

import re
from pathlib import Path

from msgspec import Struct

Minor = tuple[int, int]
"""A Python version as (major, minor)."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SLIM = "slim"


class LeftOut(Struct, frozen=True):
    """A package that the prebuilt images hold, or programs expect, and that is not here."""

    name: str
    #: Why, in a few words that follow the name in brackets.
    reason: str
    #: The lowest and the highest Python without it; None = all.
    pythons: tuple[Minor, Minor] | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"

    def is_left_out_on(self, python: Minor) -> bool:
        """Whether it is missing on that Python."""
        return self.pythons is None or self.pythons[0] <= python <= self.pythons[1]


class Release(Struct, frozen=True):
    """One version of a family's framework."""

    #: "" for plain Python.
    version: str
    #: Lowest and highest Python, both included.
    pythons: tuple[Minor, Minor]
    #: What is installed on top of the family's own requirements, as ranges, from which the lock is made.
    requirements: tuple[str, ...] = ()
    #: Pins of what is to be had as source distributions only; they need nothing else.
    sources: tuple[str, ...] = ()
    #: What the requirements' own requirements would bring, and programs do not need.
    excluded: tuple[str, ...] = ()
    #: Ranges that count instead of all that others ask of these packages.
    overrides: tuple[str, ...] = ()
    #: As of which day (YYYY-MM-DD) the lock is made, "" = today: what came later was never tried with this
    #: framework. The installers and the certificates are always of today.
    day: str = ""
    #: The lock is made for Linux on x86-64, which alone has wheels of all of it; elsewhere the same pins are
    #: tried.
    only_x86: bool = False
    #: Besides what the family leaves out.
    left_out: tuple[LeftOut, ...] = ()
    #: Flags of the installer that are tried first where no package index is configured on the machine: which
    #: build of a pinned version there is depends on the index, and so does what it needs.
    first: tuple[str, ...] = ()
    #: A build for NVIDIA's GPUs, given to images for GPUs on machines that have one.
    for_gpu: bool = False

    @property
    def base(self) -> str:
        """The framework's version as images name it, however this release is built."""
        return self.version.partition("+")[0]

    @property
    def is_slim(self) -> bool:
        """Whether it holds its own requirements only, and nothing of the family's: for images with the tag
        `slim`."""
        return self.version.endswith(f"+{_SLIM}")

    def runs_on(self, python: Minor) -> bool:
        """Whether this release can be installed on that Python."""
        return self.pythons[0] <= python <= self.pythons[1]


class Sheet(Struct, frozen=True):
    """A runtime family."""

    family: str
    title: str
    #: Newest first.
    releases: tuple[Release, ...]
    #: Of every release that is not slim, as are `sources` and `left_out`.
    requirements: tuple[str, ...]
    #: A program that proves an environment: it uses what the family is there for. The locks lie beside it.
    smoke: Path
    #: Where the family is at home when nobody asked for a Python: lowest and highest.
    preferred_pythons: tuple[Minor, Minor]
    sources: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    #: The prebuilt images' framework that it stands for (`core.catalog.images`); "" = none.
    framework: str = ""
    #: The usual Python is nearer than the image's, because builds for others are hard to get.
    usual_python: bool = False
    #: Its versions are those of `ml` v1 runtimes.
    runtime_versions: bool = False
    #: Modules that are imported already in programs that begin warm (docs/adr/0096), in this order; only such
    #: as were found to be forkable.
    preloads: tuple[str, ...] = ()

    def release(self, version: str) -> Release | None:
        """The release of that version, if the sheet has it."""
        return next((found for found in self.releases if found.version == version), None)

    def lock(self, release: Release) -> Path:
        """The file with the pins of everything that the release holds, with a marker where they depend on the
        Python (`./dev lock`)."""
        name = (release.version or "plain").replace("+", "-")
        return self.smoke.with_name(f"{name}.lock")

    def asks_for(self, release: Release) -> tuple[str, ...]:
        """The ranges that the release's lock is made from."""
        return (*(() if release.is_slim else self.requirements), *release.requirements)

    def built_from(self, release: Release) -> tuple[str, ...]:
        """The pins of source distributions that go into its lock as they are."""
        return (*(() if release.is_slim else self.sources), *release.sources)

    def provides(self, release: Release) -> frozenset[str]:
        """Names of the distributions that an environment is asked to hold (their dependencies not
        counted)."""
        texts = (*self.asks_for(release), *self.built_from(release))
        names = (_NAME.match(text) for text in texts)
        return frozenset(match[0].lower() for match in names if match)

    def lacks(self, release: Release, python: Minor) -> tuple[LeftOut, ...]:
        """What is left out of that release on that Python."""
        return tuple(
            each for each in (*self.left_out, *release.left_out) if each.is_left_out_on(python)
        )


def parse_minor(text: str) -> Minor | None:
    """`"3.10"` or `"3.10.13"` as (3, 10); None if the text is not a version."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def format_minor(python: Minor) -> str:
    """(3, 10) as `"3.10"`."""
    return f"{python[0]}.{python[1]}"
