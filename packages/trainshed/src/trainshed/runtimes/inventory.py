"""Lists the runtimes and which of them are built, and builds one now; for operators, without a service."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from trainshed.core.units import Bytes, Nanos
from trainshed.runtimes.catalog import newest
from trainshed.runtimes.environments import Environments
from trainshed.runtimes.families import FAMILIES, sheet_of
from trainshed.runtimes.installer import Installer
from trainshed.runtimes.interpreters import Interpreter, Interpreters
from trainshed.runtimes.port import BuildFailed, Progress
from trainshed.runtimes.sheet import Release, Sheet, format_minor, parse_minor

LIKELY = (FAMILIES[0].family, "python")
"""Families of jobs that name no runtime, and of most custom programs."""


class InventoryEntry(Struct, frozen=True):
    """A release of a family on a Python, and whether it is built."""

    family: str
    version: str
    #: The Python on which it would be built here; "" = none that fits was found.
    python: str
    #: The Pythons that fit, in words.
    needs: str
    #: Directory of the environment; None = not built.
    built: Path | None = None
    bytes: Bytes = 0
    #: When it was used last, ns since the epoch; 0 = it is not built.
    used: Nanos = 0
    #: What the images hold and it lacks, each with the reason.
    left_out: tuple[str, ...] = ()


class Inventory:
    """The base environments in `cache`. `now`: nanoseconds."""

    def __init__(self, cache: Path, *, now: Callable[[], int]) -> None:
        self.installer = Installer(cache / "uv")
        self._interpreters = Interpreters()
        self._environments = Environments(cache / "environments", self.installer, now)

    def offers(self, family: str = "") -> list[InventoryEntry]:
        """Return every release on the Python on which jobs would get it here, and on others on which it is
        built. Raises BuildFailed for an unknown family."""
        sheets = [self._sheet(family)] if family else FAMILIES
        return [
            offer
            for sheet in sheets
            for release in sheet.releases
            for offer in self._of(sheet, release)
        ]

    def build(
        self, family: str, progress: Progress, version: str = "", python: str = ""
    ) -> InventoryEntry:
        """Build a release, the newest one if no `version` is named, unless it is built. Blocks. Raises
        BuildFailed."""
        sheet = self._sheet(family)
        near = parse_minor(python) if python else None
        if python and near is None:
            raise BuildFailed(f"{python!r} is not a Python version such as 3.11.")
        known = not version or sheet.release(version) is not None
        candidate = newest(sheet, self._interpreters, version, near) if known else None
        if candidate is None:
            raise BuildFailed(self._cannot(sheet, version))
        if near is not None and candidate.python != near:
            raise BuildFailed(
                f"{_titled(sheet, candidate.release)} cannot be built on Python {python} here: it needs "
                f"{_needs(candidate.release)}, and found are {self._found()}."
            )
        interpreter = self._interpreters.get(candidate.python)
        if interpreter is None:
            raise BuildFailed(self._cannot(sheet, version))
        self._environments.build(sheet, candidate.release, interpreter, progress)
        return self._offer(sheet, candidate.release, interpreter)

    def _sheet(self, family: str) -> Sheet:
        if sheet := sheet_of(family):
            return sheet
        known = ", ".join(sheet.family for sheet in FAMILIES)
        raise BuildFailed(f"There is no runtime family {family!r}; there are: {known}.")

    def _of(self, sheet: Sheet, release: Release) -> list[InventoryEntry]:
        chosen = newest(sheet, self._interpreters, release.version)
        home = chosen.python if chosen else None
        entries: list[InventoryEntry] = []
        for python in sorted(self._interpreters.found(), key=lambda python: python != home):
            interpreter = self._interpreters.get(python)
            if interpreter is not None and release.runs_on(python):
                offer = self._offer(sheet, release, interpreter)
                if offer.built or python == home:
                    entries.append(offer)
        return entries or [InventoryEntry(sheet.family, release.version, "", _needs(release))]

    def _offer(self, sheet: Sheet, release: Release, interpreter: Interpreter) -> InventoryEntry:
        built = self._environments.find(sheet, release, interpreter)
        size = self._environments.size(built) if built else 0
        used = self._environments.last_used(built) if built else 0
        return InventoryEntry(
            sheet.family,
            release.version,
            format_minor(interpreter.minor),
            _needs(release),
            built.root if built else None,
            size,
            used,
            tuple(map(str, sheet.lacks(release, interpreter.minor))),
        )

    def _cannot(self, sheet: Sheet, version: str) -> str:
        release = sheet.release(version)
        if version and release is None:
            known = ", ".join(other.version for other in sheet.releases if other.version)
            return f"{sheet.title} {version} is not served; there are: {known or 'no versions'}."
        release = release or sheet.releases[0]
        return (
            f"{_titled(sheet, release)} needs {_needs(release)}, and found are {self._found()}. "
            "Install such a Python where it is looked for (PATH, pyenv, uv), and try again."
        )

    def _found(self) -> str:
        return ", ".join(map(format_minor, self._interpreters.found()))


def _titled(sheet: Sheet, release: Release) -> str:
    return f"{sheet.title} {release.version}".strip()


def _needs(release: Release) -> str:
    low, high = map(format_minor, release.pythons)
    return f"Python {low}" if low == high else f"Python {low} to {high}"
