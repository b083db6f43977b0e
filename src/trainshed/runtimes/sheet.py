"""The data sheet of a runtime family: which versions there are, on which Pythons, and what they hold."""

import re
from dataclasses import dataclass

Minor = tuple[int, int]
"""A Python version as (major, minor)."""


@dataclass(frozen=True, slots=True)
class Release:
    """One version of a family's framework ("" for plain Python).

    `pythons`: lowest and highest Python, both included. `requirements`: what is installed on top of the
    family's own requirements, as ranges; the resolved versions are recorded with each environment.
    """

    version: str
    pythons: tuple[Minor, Minor]
    requirements: tuple[str, ...] = ()

    def runs_on(self, python: Minor) -> bool:
        """Whether this release can be installed on that Python."""
        return self.pythons[0] <= python <= self.pythons[1]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A runtime family.

    `releases`: newest first. `requirements`: of every release. `smoke`: modules whose import proves an
    environment. `preferred_pythons`: where the family is at home when nobody asked for a Python.
    `framework`: the prebuilt images' framework that it stands for (`core.catalog.images`), "" for none.
    `missing`: well-known packages of those images that are left out here, so that jobs are told.
    """

    family: str
    title: str
    releases: tuple[Release, ...]
    requirements: tuple[str, ...]
    smoke: tuple[str, ...]
    preferred_pythons: tuple[Minor, Minor]
    framework: str = ""
    missing: tuple[str, ...] = ()

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


def parse_minor(text: str) -> Minor | None:
    """`"3.10"` or `"3.10.13"` as (3, 10); None if the text is not a version."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def format_minor(python: Minor) -> str:
    """(3, 10) as `"3.10"`."""
    return f"{python[0]}.{python[1]}"
