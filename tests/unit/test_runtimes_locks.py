"""The locks of TensorFlow hold what its data sheet asks for, on every Python of a release."""

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from trainshed.runtimes.sheet import Minor, Release, format_minor
from trainshed.runtimes.tensorflow.sheet import SHEET

_CASES = [
    pytest.param(release, (3, minor), id=f"{release.version}-py3.{minor}")
    for release in SHEET.releases
    for minor in range(release.pythons[0][1], release.pythons[1][1] + 1)
]


def _applies(requirement: Requirement, python: Minor) -> bool:
    environment = {
        "python_version": format_minor(python),
        # Any patch of it.
        "python_full_version": f"{format_minor(python)}.9",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
    }
    return requirement.marker is None or requirement.marker.evaluate(environment)


def _pins(release: Release, python: Minor) -> dict[str, Version]:
    pins: dict[str, Version] = {}
    for line in SHEET.lock(release).read_text().splitlines():
        requirement = Requirement(line)
        if _applies(requirement, python):
            (pin,) = requirement.specifier
            assert requirement.name not in pins, f"two pins of {requirement.name}"
            pins[requirement.name] = Version(pin.version)
    return pins


@pytest.mark.parametrize(("release", "python"), _CASES)
def test_a_lock_pins_what_its_release_asks_for_once(release: Release, python: Minor) -> None:
    pins = _pins(release, python)
    overrides = {Requirement(text).name for text in release.overrides}
    for text in (*SHEET.asks_for(release), *SHEET.built_from(release)):
        asked = Requirement(text)
        if not _applies(asked, python):
            continue
        pin = pins[canonicalize_name(asked.name)]
        if asked.name not in overrides:
            assert asked.specifier.contains(pin, prereleases=True), f"{asked}, and {pin} is pinned"


@pytest.mark.parametrize(("release", "python"), _CASES)
def test_what_is_left_out_is_not_pinned(release: Release, python: Minor) -> None:
    pins = _pins(release, python)
    for each in SHEET.lacks(release, python):
        assert canonicalize_name(each.name) not in pins
