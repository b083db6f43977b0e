"""Tests that the locks of every runtime contain the packages of the hosted images, or that its sheet lists
the missing ones."""

import json
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.runtime_contents.modules import MODULES
from trainshed.core.catalog.images import parse_prebuilt
from trainshed.runtimes.families import FAMILIES, Minor, Release, Sheet, format_minor, parse_minor

_DOCUMENTED = Path(__file__).parents[1] / "runtime_contents/documented.json"
_HIGHEST_PATCH = 99

_RUNTIMES = [
    (sheet, release, (3, minor))
    for sheet in FAMILIES
    for release in sheet.releases
    # Small environments contain only the packages in their name.
    if release.space is not None and not release.is_slim
    for minor in range(release.pythons[0][1], release.pythons[1][1] + 1)
]


_parsed = cache(Requirement)
"""A cache of parsed requirements: locks share many lines, and are read once for each Python."""


@cache
def _pins(lock: Path, python: Minor) -> frozenset[str]:
    """Return the distributions that a lock installs for a Python on Linux."""
    markers = {
        "python_version": format_minor(python),
        "python_full_version": f"{format_minor(python)}.{_HIGHEST_PATCH}",
        **{"sys_platform": "linux", "platform_machine": "x86_64", "os_name": "posix"},
        **{"platform_system": "Linux", "implementation_name": "cpython"},
        "platform_python_implementation": "CPython",
    }
    pins = map(_parsed, lock.read_text().splitlines())
    return frozenset(
        canonicalize_name(pin.name) for pin in pins if pin.marker is None or pin.marker.evaluate(markers)
    )


def _absent(sheet: Sheet, release: Release, python: Minor, wanted: set[str]) -> set[str]:
    left_out = {canonicalize_name(lack.name) for lack in sheet.lacks(release, python)}
    return wanted - _pins(sheet.lock(release), python) - left_out


def _documented_packages(sheet: Sheet, release: Release) -> set[str]:
    """Return the packages of the framework's public images of this version, or of the nearest versions."""
    documented: dict[Minor, set[str]] = {}
    for group in json.loads(_DOCUMENTED.read_text()):
        for name in group["images"]:
            image = parse_prebuilt(f"us-docker.pkg.dev/vertex-ai/training/{name}:latest")
            assert image is not None, name
            version = parse_minor(image.version)
            if image.framework == sheet.framework and version is not None:
                packages = map(canonicalize_name, group["packages"])
                documented.setdefault(version, set()).update(packages)
    wanted = parse_minor(release.version)
    if wanted is None or not documented:
        return set()
    nearest = min(documented, key=lambda version: abs(_flat(version) - _flat(wanted)))
    return documented[nearest]


def _flat(version: Minor) -> int:
    return version[0] * 1000 + version[1]


def test_every_documented_package_is_pinned_by_the_runtime_or_listed_as_missing() -> None:
    """Documented packages are the modules of `MODULES` and the packages that the public pages list."""
    for sheet, release, python in _RUNTIMES:
        modules = {module.distribution for module in MODULES if sheet.family in module.families}
        assert modules
        for wanted in (modules, _documented_packages(sheet, release)):
            assert not _absent(sheet, release, python, wanted), (sheet.family, release, python)


def test_packages_listed_as_missing_are_not_pinned() -> None:
    for sheet, release, python in _RUNTIMES:
        left_out = {canonicalize_name(lack.name) for lack in sheet.lacks(release, python)}
        assert not left_out & _pins(sheet.lock(release), python), (sheet.family, release, python)
        assert all(lack.reason for lack in sheet.lacks(release, python))
