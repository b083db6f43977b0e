"""Which release of a family on which Python comes nearest to what is asked for. Pure: it builds and looks up nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainshed.runtimes.sheet import Minor, Release, Sheet, parse_minor


class KnownPythons(Protocol):
    """The interpreters that runtimes can be built on."""

    def running(self) -> Minor:
        """The Python that the service itself runs on. Free."""
        ...

    def found(self) -> Sequence[Minor]:
        """Every Python found on the machine, the running one included. The first call may take a moment."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A release on a Python that it runs on and that is there."""

    release: Release
    python: Minor

    def is_exactly(self, version: str, python: Minor) -> bool:
        """Whether it is that framework's version on that Python, however it was built."""
        return self.release.base == version and self.python == python


def newest(
    sheet: Sheet, pythons: KnownPythons, version: str = "", near: Minor | None = None
) -> Candidate | None:
    """The newest release, or the one of `version`, on the Python nearest to `near`, or on the one that the family is most
    at home on. The machine is searched for Pythons only where the service's own will not do."""
    running = pythons.running()
    low, high = sheet.preferred_pythons
    asked = [each for each in sheet.releases if each.version == version]
    releases = asked or [each for each in sheet.releases if not each.for_gpu and not each.is_slim]
    at_once = low <= running <= high if near is None else running == near
    found = _candidates(releases, [running]) if at_once else []
    if not found:
        ordered = sorted(
            pythons.found(),
            key=lambda python: (
                (not low <= python <= high, -_flat(python))
                if near is None
                else (False, _distance(python, near))
            ),
        )
        found = _candidates(releases, ordered)
    # The order of the sheet (newest first) is kept within the order of the Pythons.
    return found[0] if found else None


def nearest(
    sheet: Sheet,
    pythons: KnownPythons,
    version: str,
    python: Minor,
    *,
    for_gpu: bool,
    slim: bool = False,
) -> Candidate | None:
    """The release nearest to `version` and, of those, on the Python nearest to `python`. `for_gpu`, `slim`: of two equally
    near ones the build for GPUs, or the slim one; without them no such release is taken."""
    wanted = parse_minor(version) or (0, 0)
    releases = [
        each
        for each in sheet.releases
        if (for_gpu or not each.for_gpu) and (slim or not each.is_slim)
    ]
    # Ask for the whole list only when the service's own Python is not the one: it may need a search.
    running = pythons.running()
    if sheet.own_python:
        python = running
    found = _candidates(releases, [running] if running == python else pythons.found())
    if not any(each.is_exactly(version, python) for each in found):
        found = _candidates(releases, pythons.found())
    return min(
        found,
        key=lambda each: (
            _distance(parse_minor(each.release.version) or (0, 0), wanted),
            _distance(each.python, python),
            not each.release.is_slim,
            not each.release.for_gpu,
        ),
        default=None,
    )


def _candidates(releases: Iterable[Release], pythons: Iterable[Minor]) -> list[Candidate]:
    kept = tuple(releases)
    return [
        Candidate(release, python)
        for python in pythons
        for release in kept
        if release.runs_on(python)
    ]


def _flat(version: Minor) -> int:
    return version[0] * 1000 + version[1]


def _distance(one: Minor, other: Minor) -> int:
    return abs(_flat(one) - _flat(other))
