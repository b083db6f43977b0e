"""The data sheet of a runtime family: which versions there are, on which Pythons, and what they hold."""

import re
from dataclasses import dataclass
from pathlib import Path

Minor = tuple[int, int]
"""A Python version as (major, minor)."""


@dataclass(frozen=True, slots=True)
class Release:
    """One version of a family's framework ("" for plain Python).

    `pythons`: lowest and highest Python, both included. `requirements`: what is installed on top of the
    family's own requirements, as ranges; the resolved versions are recorded with each environment.
    `lock`: a file of pinned requirements that is installed instead of all ranges. `first`: flags of the
    installer that are tried first where no package index is configured on the machine. `for_gpu`: a build for
    NVIDIA's GPUs, given to images for GPUs on machines that have one.
    """

    version: str
    pythons: tuple[Minor, Minor]
    requirements: tuple[str, ...] = ()
    lock: Path | None = None
    first: tuple[str, ...] = ()
    for_gpu: bool = False

    @property
    def base(self) -> str:
        """The framework's version as images name it, however this release is built."""
        return self.version.partition("+")[0]

    def runs_on(self, python: Minor) -> bool:
        """Whether this release can be installed on that Python."""
        return self.pythons[0] <= python <= self.pythons[1]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A runtime family.

    `releases`: newest first. `requirements`: of every release. `smoke`: a program that proves an environment: it
    uses what the family is there for. `preferred_pythons`: where the family is at home when nobody asked for a Python.
    `framework`: the prebuilt images' framework that it stands for (`core.catalog.images`), "" for none.
    `missing`: well-known packages of those images that are left out here, so that jobs are told.
    `own_python`: the service's own Python is nearer than the image's, because builds for others are hard to get.
    `runtime_versions`: its versions are those of `ml` v1 runtimes.
    """

    family: str
    title: str
    releases: tuple[Release, ...]
    requirements: tuple[str, ...]
    smoke: Path
    preferred_pythons: tuple[Minor, Minor]
    framework: str = ""
    missing: tuple[str, ...] = ()
    own_python: bool = False
    runtime_versions: bool = False

    def release(self, version: str) -> Release | None:
        """The release of that version, if the sheet has it."""
        return next((found for found in self.releases if found.version == version), None)

    def provides(self, release: Release) -> frozenset[str]:
        """Names of the distributions that an environment is asked to hold (their dependencies not counted)."""
        names = (
            re.match(r"[A-Za-z0-9._-]+", text)
            for text in (*self.requirements, *release.requirements)
        )
        return frozenset(match[0].lower() for match in names if match)

    def lacks(self, release: Release) -> tuple[str, ...]:
        """What of `missing` is not in that release either."""
        provided = self.provides(release)
        return tuple(name for name in self.missing if name not in provided)


def parse_minor(text: str) -> Minor | None:
    """`"3.10"` or `"3.10.13"` as (3, 10); None if the text is not a version."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def format_minor(python: Minor) -> str:
    """(3, 10) as `"3.10"`."""
    return f"{python[0]}.{python[1]}"
