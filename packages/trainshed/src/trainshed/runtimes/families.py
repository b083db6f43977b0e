"""Reads the runtime families from their data sheets. A family is a framework, such as TensorFlow. A sheet
contains its versions, and the Pythons and packages of each version.

A sheet is `FAMILY/sheet.toml`, in the directory of the family's locks. In a list of requirements, "@NAME"
refers to the list NAME of the sheet (`lists`) or of all sheets (`requirements.toml`). A release inherits the
fields of `every`, and of the release in `like`, unless it sets them.

`until` limits parts (named lists of packages) to older Pythons: it maps a part to its highest minor version
of Python 3, or to 0 if no Python has the part. Other parts are available for all Pythons of the release.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from trainshed.core.runtime import OldWay

Minor = tuple[int, int]
"""A Python version as (major, minor)."""

_HERE: Final = Path(__file__).parent
_LISTS: Final[Mapping[str, list[str]]] = tomllib.loads((_HERE / "requirements.toml").read_text())
_FOLDERS: Final = (
    *("scikit_learn", "python", "xgboost", "pytorch", "tensorflow"),
    *("reduction_server", "tensorboard", "gsutil"),
)
"""Directories of the framework families. The first one is the service's default family."""
_REQUIREMENTS: Final = {"requirements", "sources", "excluded", "overrides"}
"""Fields of sheets and releases that contain lists of requirements."""

GSUTIL: Final = "gsutil"
TENSORBOARD: Final = "tensorboard"

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SLIM = "slim"


class LeftOut(Struct, frozen=True, forbid_unknown_fields=True):
    """A package that is missing here, although the prebuilt images contain it or programs expect it."""

    name: str
    #: Reason for its absence, in a few words. They follow the package's name in parentheses.
    reason: str
    #: Lowest and highest Python for which the package is missing; None = all Pythons.
    pythons: tuple[Minor, Minor] | None = None
    #: Device in the names of the images that contain the package; None = all images. Only jobs with such
    #: images get a notice that the package is missing.
    device: str | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"

    def is_left_out_on(self, python: Minor) -> bool:
        return self.pythons is None or self.pythons[0] <= python <= self.pythons[1]


class Change(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of behavior in a version of a framework. Programs can restore the former behavior."""

    since: Minor
    #: The former behavior, as a clause for notices.
    before: str
    old_way: OldWay


class Release(Struct, frozen=True, forbid_unknown_fields=True):
    """One version of a framework family, such as TensorFlow 2.15."""

    #: The framework's version, with the build after "+"; "" for plain Python.
    version: str
    #: Lowest and highest Python, inclusive.
    pythons: tuple[Minor, Minor]
    #: Version ranges of packages, in addition to the requirements of the framework family. The lock is made
    #: from them.
    requirements: tuple[str, ...] = ()
    #: Pins of packages that have no wheels and are built from source. These packages must not need other
    #: packages.
    sources: tuple[str, ...] = ()
    #: Dependencies of the requirements that programs do not need.
    excluded: tuple[str, ...] = ()
    #: Version ranges that override the requirements of other packages.
    overrides: tuple[str, ...] = ()
    #: Latest date (YYYY-MM-DD) of the package versions in the lock, because later versions were never tested
    #: with this framework. None = today. Installers and certificates are always current.
    day: str | None = None
    #: Whether the lock is for Linux on x86-64 only, because only this platform has wheels of all packages.
    #: Other platforms try the same pins.
    only_x86: bool = False
    #: Missing packages, in addition to those of the framework family.
    left_out: tuple[LeftOut, ...] = ()
    #: Flags of the installer for its first attempt, such as `--torch-backend cpu`. If this attempt fails, the
    #: installer runs again without the flags. They are not used if the machine configures a package index.
    first: tuple[str, ...] = ()
    #: Whether this is a build for NVIDIA GPUs. It is used for GPU images on machines with a GPU.
    for_gpu: bool = False
    #: Size of the download and of the environment in a human-readable form; None = small.
    space: str | None = None

    @property
    def base(self) -> str:
        """The framework's version in the names of images, which is the same for every build."""
        return self.version.partition("+")[0]

    @property
    def is_slim(self) -> bool:
        """Whether the release contains only its own requirements, without those of the framework family. Used
        for images with the tag `slim`."""
        return self.version.endswith(f"+{_SLIM}")

    def runs_on(self, python: Minor) -> bool:
        return self.pythons[0] <= python <= self.pythons[1]


class Sheet(Struct, frozen=True, forbid_unknown_fields=True):
    family: str
    title: str
    #: All releases, newest first.
    releases: tuple[Release, ...]
    #: Requirements of every release that is not slim. `sources` and `left_out` apply to the same releases.
    requirements: tuple[str, ...]
    #: The directory of the framework family's locks (pinned packages).
    folder: Path
    #: Lowest and highest preferred Python for jobs that require no Python.
    preferred_pythons: tuple[Minor, Minor]
    #: Modules that must load before an environment counts as built.
    imports: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    #: Name of the framework in the names of prebuilt images (`core.catalog.images`); None = no such images.
    framework: str | None = None
    #: Whether to prefer the usual Python (`Interpreters.usual`) over the Python of the image, because the
    #: framework's builds for other Pythons are rare.
    usual_python: bool = False
    #: Whether the versions of this framework family are `ml` v1 runtime versions.
    runtime_versions: bool = False
    #: Modules to preload for programs with a warm start (docs/adr/0083), in this order. They must be safe to
    #: fork.
    preloads: tuple[str, ...] = ()
    #: A program that becomes the framework family's only command, with the family's name, and replaces all
    #: console scripts. The family's own Python runs it. None = the job's Python runs the console scripts.
    command: Path | None = None
    #: Changes that break programs for older versions.
    changes: tuple[Change, ...] = ()

    def release(self, version: str) -> Release | None:
        return next((release for release in self.releases if release.version == version), None)

    def lock(self, release: Release) -> Path:
        """Return the path of the lock. The lock contains pins of all packages of the release, with markers
        for the Python (`./dev lock`)."""
        name = (release.version or "plain").replace("+", "-")
        return self.folder / f"{name}.lock"

    def asks_for(self, release: Release) -> tuple[str, ...]:
        return (*(() if release.is_slim else self.requirements), *release.requirements)

    def built_from(self, release: Release) -> tuple[str, ...]:
        return (*(() if release.is_slim else self.sources), *release.sources)

    def provides(self, release: Release) -> frozenset[str]:
        """Return the names of the distributions in an environment, without their dependencies."""
        texts = (*self.asks_for(release), *self.built_from(release))
        names = (_NAME.match(text) for text in texts)
        return frozenset(match[0].lower() for match in names if match)

    def changes_since(self, wanted_version: str, release: Release) -> tuple[Change, ...]:
        """Return the changes of behavior from the requested version to that release."""
        wanted, served = parse_minor(wanted_version), parse_minor(release.version)
        if wanted is None or served is None:
            return ()
        return tuple(change for change in self.changes if wanted < change.since <= served)

    def lacks(self, release: Release, python: Minor) -> tuple[LeftOut, ...]:
        return tuple(
            package for package in (*self.left_out, *release.left_out) if package.is_left_out_on(python)
        )


def parse_minor(text: str | None) -> Minor | None:
    """Return `"3.10"` or `"3.10.13"` as (3, 10). Returns None for None, or if the text is not a version."""
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None


def format_minor(python: Minor) -> str:
    return f"{python[0]}.{python[1]}"


def _sheet(folder: Path) -> Sheet:
    sheet = tomllib.loads((folder / "sheet.toml").read_text())
    lists = {**_LISTS, **sheet.pop("lists", {})}
    every, parts = sheet.pop("every", {}), sheet.pop("parts", {})
    releases: dict[str, dict[str, Any]] = {}
    for own in sheet["releases"]:
        release = {**every, **releases.get(own.pop("like", ""), {}), **own}
        releases[release["version"]] = release
    for fields in (sheet, *releases.values()):
        for name in _REQUIREMENTS & fields.keys():
            fields[name] = tuple(_expand(fields[name], lists))
    sheet["releases"] = [_release(release, sheet["title"], parts) for release in releases.values()]
    sheet["folder"] = folder
    if command := sheet.get("command"):
        sheet["command"] = folder / command
    return msgspec.convert(sheet, Sheet)


def _expand(texts: Sequence[str], lists: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for text in texts:
        if text.startswith("@"):
            yield from _expand(lists[text[1:]], lists)
        else:
            yield text


def _release(fields: dict[str, Any], title: str, parts: Mapping[str, Sequence[str]]) -> Release:
    """Create a release from its fields in the sheet. It has the parts that are available for its Pythons."""
    until: dict[str, int] = fields.pop("until", {})
    release = msgspec.convert(fields, Release)
    lowest, highest = release.pythons
    requirements = list(release.requirements)
    left_out: list[LeftOut] = []
    for part, names in parts.items():
        last = (3, until.get(part, highest[1]))
        marker = f"; python_version < '3.{last[1] + 1}'" if last < highest else ""
        if last >= lowest:
            requirements += [name + marker for name in names]
        if last < highest:
            reason = f"no release of it supports {title} {release.base} on this Python"
            without = (max(lowest, (3, last[1] + 1)), highest)
            left_out += [LeftOut(name, reason, without) for name in names]
    return msgspec.structs.replace(
        release, requirements=tuple(requirements), left_out=(*left_out, *release.left_out)
    )


FAMILIES: Final = tuple(_sheet(_HERE / folder) for folder in _FOLDERS)
"""The data sheets of all framework families. The first one is the service's default family."""


def sheet_of(family: str) -> Sheet | None:
    return next((sheet for sheet in FAMILIES if sheet.family == family), None)
