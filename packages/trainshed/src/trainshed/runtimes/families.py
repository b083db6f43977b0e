"""Reads the data sheets of the runtime families: `FAMILY/sheet.toml`, beside the family's locks.

In a sheet, "@NAME" in a list of requirements stands for the list NAME of the sheet (`lists`) or of all sheets
(`requirements.toml`). A release has what the sheet says of `every` one, and of the one that it is `like`,
unless it says otherwise. `until` names, by part, the highest minor version of Python 3 for which the part is
available, 0 = none; a part that is not named supports all Pythons of the release.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from trainshed.runtimes.sheet import LeftOut, Release, Sheet

_HERE: Final = Path(__file__).parent
_LISTS: Final[Mapping[str, list[str]]] = tomllib.loads((_HERE / "requirements.toml").read_text())
_FOLDERS: Final = (
    *("scikit_learn", "python", "xgboost", "pytorch", "tensorflow"),
    *("reduction_server", "tensorboard", "gsutil"),
)
"""The first one is the service's default family."""
_REQUIREMENTS: Final = {"requirements", "sources", "excluded", "overrides"}
"""Lists of requirements, of sheets and of releases."""

GSUTIL: Final = "gsutil"
TENSORBOARD: Final = "tensorboard"


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
    """Make a release, which holds the parts that are available for its Pythons."""
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
            reason = f"no release of it goes with {title} {release.base} on this Python"
            without = (max(lowest, (3, last[1] + 1)), highest)
            left_out += [LeftOut(name, reason, without) for name in names]
    return msgspec.structs.replace(
        release, requirements=tuple(requirements), left_out=(*left_out, *release.left_out)
    )


FAMILIES: Final = tuple(_sheet(_HERE / folder) for folder in _FOLDERS)
"""The data sheets of all families; the first one is the service's default."""


def sheet_of(family: str) -> Sheet | None:
    """Return the sheet of a family; None if it is not registered."""
    return next((sheet for sheet in FAMILIES if sheet.family == family), None)
