"""Lists the runtimes and which of them are built, and builds a runtime immediately. For operators; needs no
service."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from trainshed.core.runtime import RuntimeRefusal
from trainshed.core.units import Bytes, Nanos
from trainshed.runtimes.catalog import LocalCatalog, newest, unknown_family_message
from trainshed.runtimes.environments import Base, Environments
from trainshed.runtimes.families import FAMILIES, Release, Sheet, format_minor
from trainshed.runtimes.installer import Installer
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.port import BuildFailed, Progress


class InventoryEntry(Struct, frozen=True):
    """One version of a framework family (for example TensorFlow 2.15) for one Python version, and whether its
    environment is built."""

    family: str
    version: str
    #: The Python of the release's environment on this machine; "" = no suitable Python was found.
    python: str
    #: The suitable Pythons, in a human-readable form.
    needs: str
    #: Directory of the environment; None = not built.
    built: Path | None = None
    bytes: Bytes = 0
    #: Time of the last use, in ns since the epoch; 0 = not built.
    used: Nanos = 0
    #: Packages of the prebuilt images that the environment lacks, each with the reason.
    left_out: tuple[str, ...] = ()


class Inventory:
    """Lists and builds the base environments in `cache`. `now`: clock in nanoseconds."""

    def __init__(self, cache: Path, *, now: Callable[[], int]) -> None:
        self._interpreters = Interpreters()
        self._catalog = LocalCatalog(self._interpreters)
        self._environments = Environments(cache / "environments", Installer(cache / "uv"), now)

    def offers(self, family: str | None = None) -> list[InventoryEntry]:
        """Return the versions of the framework family `family`; None = of all families. Each version is
        listed for the Python that jobs get here, and for other Pythons with a built environment. Raises
        BuildFailed if the family does not exist."""
        sheets = [sheet for sheet in FAMILIES if family in (None, sheet.family)]
        if family is not None and not sheets:
            raise BuildFailed(unknown_family_message(family))
        return [offer for sheet in sheets for release in sheet.releases for offer in self._of(sheet, release)]

    def build(
        self, family: str | None, progress: Progress, version: str | None = None, python: str | None = None
    ) -> InventoryEntry:
        """Build the environment of one version of the framework family `family`, unless it is built. Blocks.
        Raises BuildFailed. `version`: None = the newest. `family`: None = the environment of jobs without an
        image."""
        catalog = self._catalog
        choice = catalog.for_family(family, version, python) if family else catalog.default()
        if isinstance(choice, RuntimeRefusal):
            raise BuildFailed(choice.reason)
        if python not in (None, choice.python_version):
            raise BuildFailed(
                f"{choice.family} {choice.version} cannot be built on Python {python} here. The nearest "
                f"Python that fits is {choice.python_version}."
            )
        base = self._environments.resolve(choice, self._interpreters)
        self._environments.build(base, progress, in_background=False)
        return self._offer(base)

    def _of(self, sheet: Sheet, release: Release) -> list[InventoryEntry]:
        chosen = newest(sheet, self._interpreters, release.version)
        home = chosen.python if chosen else None
        entries: list[InventoryEntry] = []
        for python in sorted(self._interpreters.found(), key=lambda python: python != home):
            interpreter = self._interpreters.get(python)
            if interpreter is not None and release.runs_on(python):
                offer = self._offer(self._environments.base(sheet, release, interpreter))
                if offer.built or python == home:
                    entries.append(offer)
        return entries or [InventoryEntry(sheet.family, release.version, "", _needs(release))]

    def _offer(self, base: Base) -> InventoryEntry:
        built = base.prefix if self._environments.has(base) else None
        size = self._environments.size(built) if built else 0
        used = self._environments.last_used(built) if built else 0
        return InventoryEntry(
            base.sheet.family,
            base.release.version,
            format_minor(base.interpreter.minor),
            _needs(base.release),
            built.root if built else None,
            size,
            used,
            tuple(map(str, base.sheet.lacks(base.release, base.interpreter.minor))),
        )


def _needs(release: Release) -> str:
    low, high = map(format_minor, release.pythons)
    return f"Python {low}" if low == high else f"Python {low} to {high}"
