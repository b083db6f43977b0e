"""Reads an operator's image map: which images run in one of our environments, or as another image
(spec/runtimes#substitutes).

The map is the `[[images]]` of the configuration. The first entry whose pattern matches the image as the job
names it wins.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from trainshed.core.catalog.images import is_reference
from trainshed.runtimes.families import FAMILIES, sheet_of
from trainshed.runtimes.sheet import parse_minor

_KEYS = ("pattern", "runtime", "python", "image")


class MappedImage(Struct, frozen=True):
    """One entry of an operator's map: a pattern, and either another image or a runtime."""

    #: `*`, `?` and `[…]` match over the whole image URI, slashes included.
    pattern: str
    #: A runtime family; "" if `image` is given.
    family: str = ""
    #: Version of the family; "" = the newest.
    version: str = ""
    #: Python version; "" = the family's preferred one.
    python: str = ""
    #: Another image; "" if `family` is given.
    image: str = ""


def mapped(entries: Sequence[MappedImage], image_uri: str) -> MappedImage | None:
    """Return the first entry that matches the image."""
    return next((entry for entry in entries if fnmatch.fnmatchcase(image_uri, entry.pattern)), None)


def read_images(tables: Sequence[Mapping[str, Any]]) -> tuple[MappedImage, ...]:
    """Return the entries of the tables. Raises ValueError with a line for each fault."""
    wrong: list[str] = []
    seen: dict[str, int] = {}
    entries: list[MappedImage] = []
    for position, table in enumerate(tables):
        where = f"images[{position}]"
        faults = _faults(table)
        pattern = str(table.get("pattern", ""))
        if pattern and pattern in seen:
            faults.append(("pattern", f"is the one of images[{seen[pattern]}], which always wins"))
        seen.setdefault(pattern, position)
        wrong += [f"{where}.{key}: {fault}" for key, fault in faults]
        if not faults:
            family, _, version = table.get("runtime", "").partition(" ")
            python, image = table.get("python", ""), table.get("image", "")
            entries.append(MappedImage(pattern, family, version, python, image))
    if wrong:
        raise ValueError("\n".join(wrong))
    return tuple(entries)


def _faults(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the faults of an entry, by key."""
    faults = [
        (
            key,
            f"is no key of an image map's entry; there are {', '.join(_KEYS)}.{_near(key, _KEYS)}",
        )
        for key in table
        if key not in _KEYS
    ]
    faults += [
        (key, f"{table[key]!r} is not a text with something in it")
        for key in _KEYS
        if key in table and not (isinstance(table[key], str) and table[key])
    ]
    if faults:
        return faults
    if "pattern" not in table:
        faults.append(("pattern", "is missing; give the images that are meant, such as python:3.*"))
    if ("runtime" in table) == ("image" in table):
        cause = "both are given" if "image" in table else "neither is given"
        faults.append(("runtime", f"exactly one of runtime and image says what is run; {cause}"))
    if "runtime" in table:
        faults += _runtime_faults(table["runtime"], table.get("python", ""))
    elif "python" in table:
        faults.append(("python", "goes with runtime only; an image has a Python of its own"))
    if "image" in table and not is_reference(table["image"]):
        faults.append(("image", f"{table['image']!r} is not an image name such as HOST/NAME:TAG"))
    return faults


def _runtime_faults(runtime: str, python: str) -> list[tuple[str, str]]:
    family, _, version = runtime.partition(" ")
    sheet = sheet_of(family)
    if sheet is None:
        names = [family_sheet.family for family_sheet in FAMILIES]
        return [
            (
                "runtime",
                f"there is no runtime {family!r}; there are {', '.join(names)}.{_near(family, names)}",
            )
        ]
    releases = [release for release in sheet.releases if version in ("", release.version)]
    if not releases:
        versions = ", ".join(release.version for release in sheet.releases if release.version)
        known = f"there are {versions}" if versions else "it has none, leave it out"
        return [("runtime", f"{sheet.title} has no version {version!r} here; {known}")]
    minor = parse_minor(python)
    if python and (minor is None or not any(release.runs_on(minor) for release in releases)):
        return [("python", f"{python!r} is no Python, such as 3.11, that {runtime} runs on")]
    return []


def _near(word: str, known: Sequence[str]) -> str:
    import difflib  # Loaded late: an idle service does without it (docs/adr/0083).

    nearest = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {nearest[0]}?" if nearest else ""
