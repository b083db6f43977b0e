"""The runtime families, from their data sheets: the versions of each, the supported Pythons of each version,
and its packages. A sheet is `FAMILY/sheet.toml`, in the directory of the family's locks.

In a list of requirements, "@NAME" refers to the list NAME of the sheet (`lists`) or of all sheets
(`requirements.toml`). A release inherits the fields of `every`, and of the release in `like`, unless it sets
them. `until` contains, by part, the highest minor version of Python 3 with this part, 0 = none. Other parts
support all Pythons of the release.
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
"""The first one is the service's default family."""
_REQUIREMENTS: Final = {"requirements", "sources", "excluded", "overrides"}
"""Fields with lists of requirements, in sheets and releases."""

GSUTIL: Final = "gsutil"
TENSORBOARD: Final = "tensorboard"

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_SLIM = "slim"


class LeftOut(Struct, frozen=True, forbid_unknown_fields=True):
    """A package of the prebuilt images, or one that programs expect, that is missing here."""

    name: str
    #: Reason for its absence, in a few words that follow the name in parentheses.
    reason: str
    #: The lowest and the highest Python without it; None = all Pythons.
    pythons: tuple[Minor, Minor] | None = None
    #: Device in the names of the images that contain it; None = all images. Other jobs get no notice.
    device: str | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"

    def is_left_out_on(self, python: Minor) -> bool:
        return self.pythons is None or self.pythons[0] <= python <= self.pythons[1]


class Change(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of behavior in a version of a framework, which programs can revert."""

    since: Minor
    #: The former behavior, as a clause for notices.
    before: str
    old_way: OldWay


class Release(Struct, frozen=True, forbid_unknown_fields=True):
    """One version of a family's framework."""

    #: The framework's version; "" for plain Python.
    version: str
    #: Lowest and highest Python, both included.
    pythons: tuple[Minor, Minor]
    #: Packages in addition to the family's own requirements, as version ranges from which the lock is made.
    requirements: tuple[str, ...] = ()
    #: Pins of packages without wheels; these need no other packages.
    sources: tuple[str, ...] = ()
    #: Dependencies of the requirements that programs do not need.
    excluded: tuple[str, ...] = ()
    #: Version ranges that override the requirements of other packages.
    overrides: tuple[str, ...] = ()
    #: The date (YYYY-MM-DD) of the lock's versions, None = today: later versions were never tested with this
    #: framework. Installers and certificates are always current.
    day: str | None = None
    #: Whether the lock is for Linux on x86-64, the only platform with wheels of all packages. Other platforms
    #: try the same pins.
    only_x86: bool = False
    #: Missing packages, in addition to those of the family.
    left_out: tuple[LeftOut, ...] = ()
    #: Flags of the installer to try first if the machine configures no package index. The index determines
    #: the available builds of a pinned version, and their requirements.
    first: tuple[str, ...] = ()
    #: Whether this is a build for NVIDIA GPUs, used for GPU images on machines with a GPU.
    for_gpu: bool = False
    #: Size of the download and of the environment, for people; None = small.
    space: str | None = None

    @property
    def base(self) -> str:
        """The framework's version in the names of images, for every build."""
        return self.version.partition("+")[0]

    @property
    def is_slim(self) -> bool:
        """Whether it contains only its own requirements, without the family's: for images with the tag
        `slim`."""
        return self.version.endswith(f"+{_SLIM}")

    def runs_on(self, python: Minor) -> bool:
        return self.pythons[0] <= python <= self.pythons[1]


class Sheet(Struct, frozen=True, forbid_unknown_fields=True):
    family: str
    title: str
    #: Newest first.
    releases: tuple[Release, ...]
    #: Requirements of every release that is not slim. The same releases have `sources` and `left_out`.
    requirements: tuple[str, ...]
    #: The folder of its locks.
    folder: Path
    #: Lowest and highest preferred Python of jobs that require none.
    preferred_pythons: tuple[Minor, Minor]
    #: Modules that must load before an environment counts as built.
    imports: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    #: Its framework in the names of prebuilt images (`core.catalog.images`); None = none.
    framework: str | None = None
    #: Whether to prefer the usual Python to the image's, because builds for other Pythons are rare.
    usual_python: bool = False
    #: Whether its versions are those of `ml` v1 runtimes.
    runtime_versions: bool = False
    #: Modules to preload for warm programs (docs/adr/0083), in this order; only modules that are safe to
    #: fork.
    preloads: tuple[str, ...] = ()
    #: A program that becomes the family's only command, with the family's name, run by its own Python,
    #: instead of all console scripts. None = the job's Python runs the console scripts.
    command: Path | None = None
    #: Changes that break programs for older versions.
    changes: tuple[Change, ...] = ()

    def release(self, version: str) -> Release | None:
        return next((release for release in self.releases if release.version == version), None)

    def lock(self, release: Release) -> Path:
        """Return the path of the lock: the pins of all packages of the release, with markers for the Python
        (`./dev lock`)."""
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

    def changed(self, wanted_version: str, release: Release) -> tuple[Change, ...]:
        """Return the changes between the requested version and that release."""
        wanted, served = parse_minor(wanted_version), parse_minor(release.version)
        if wanted is None or served is None:
            return ()
        return tuple(change for change in self.changes if wanted < change.since <= served)

    def lacks(self, release: Release, python: Minor) -> tuple[LeftOut, ...]:
        return tuple(
            package
            for package in (*self.left_out, *release.left_out)
            if package.is_left_out_on(python)
        )


def parse_minor(text: str | None) -> Minor | None:
    """Return `"3.10"` or `"3.10.13"` as (3, 10); None if the text is not a version, or is None."""
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
            fields[name] = tuple(_expanded(fields[name], lists))
    sheet["releases"] = [_release(release, sheet["title"], parts) for release in releases.values()]
    sheet["folder"] = folder
    if command := sheet.get("command"):
        sheet["command"] = folder / command
    return msgspec.convert(sheet, Sheet)


def _expanded(texts: Sequence[str], lists: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for text in texts:
        if text.startswith("@"):
            yield from _expanded(lists[text[1:]], lists)
        else:
            yield text


def _release(fields: dict[str, Any], title: str, parts: Mapping[str, Sequence[str]]) -> Release:
    """Create a release with the parts that are available for its Pythons."""
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
"""The data sheets of all families; the first one is the service's default."""


def sheet_of(family: str) -> Sheet | None:
    return next((sheet for sheet in FAMILIES if sheet.family == family), None)
