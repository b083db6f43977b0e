"""Which runtime stands for what a job asks for: exact where it can be had, else the nearest, told in a notice.

Owns the choice only: it reads data sheets and the interpreters that were found, and builds nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainshed.core.catalog.images import (
    PrebuiltImage,
    is_reduction_server,
    listed_images,
    nearest_prebuilt,
    parse_prebuilt,
)
from trainshed.core.runtime import RuntimeChoice, RuntimeRefusal
from trainshed.runtimes.families import FAMILIES, sheet_of
from trainshed.runtimes.sheet import Minor, Release, Sheet, format_minor, parse_minor

_IMAGES = "us-docker.pkg.dev/vertex-ai/training/"
_RUNTIME_VERSION_PACKAGES = (
    "tensorflow",
    "pandas",
    "xgboost",
    "sympy",
    "statsmodels",
    "google-cloud-bigquery",
    "google-cloud-pubsub",
    "google-api-python-client",
    "numpy",
    "scipy",
    "scikit-learn",
)
"""Well-known packages of runtime versions (facts runtime_versions.json), to tell what a stand-in lacks."""


class KnownPythons(Protocol):
    """The interpreters that runtimes can be built on."""

    def running(self) -> Minor:
        """The Python that the service itself runs on. Free."""
        ...

    def found(self) -> Sequence[Minor]:
        """Every Python found on the machine, the running one included. The first call may take a moment."""
        ...


@dataclass(frozen=True, slots=True)
class _Candidate:
    release: Release
    python: Minor


class LocalCatalog:
    """The `core.runtime.RuntimeCatalog` of runtimes built on this machine.

    `exact` (an operator's setting) turns every substitution into a refusal.
    """

    def __init__(
        self, pythons: KnownPythons, *, exact: bool = False, families: Sequence[Sheet] = FAMILIES
    ) -> None:
        self._pythons = pythons
        self._exact = exact
        self._families = families

    def default(self, family: str = "") -> RuntimeChoice | RuntimeRefusal:
        """The newest release of a family ("" = the default family) on the Python it is most at home on."""
        named = [each for each in self._families if family in ("", each.family)]
        sheet = named[0] if named else None
        if sheet is None:
            known = ", ".join(each.family for each in self._families)
            return RuntimeRefusal(f"There is no runtime family {family!r}; there are: {known}.")
        candidates = self._candidates(sheet, self._at_home(sheet))
        if not candidates:
            return RuntimeRefusal(self._no_interpreter(sheet))
        # `_candidates` keeps the sheet's order (newest first) within the order of the Pythons.
        best = candidates[0]
        return RuntimeChoice(sheet.family, best.release.version, format_minor(best.python))

    def for_image(self, image_uri: str) -> RuntimeChoice | RuntimeRefusal:
        """SPEC §4: a prebuilt image of a framework that is served, exact or at the nearest version."""
        if is_reduction_server(image_uri):
            return RuntimeRefusal(
                f"{image_uri} is a Reduction Server image, and reducers are not served by this version "
                "of the service. Leave worker pool 2 out: the workers then reduce among themselves."
            )
        image = parse_prebuilt(image_uri)
        if image is None:
            return RuntimeRefusal(_not_prebuilt(image_uri))
        sheet = next((each for each in self._families if each.framework == image.framework), None)
        if sheet is None:
            return RuntimeRefusal(
                f"No runtime with {image.framework} {image.version} is served here ({image_uri}), and another "
                f"framework cannot stand in for it. The nearest that can be had: {self._offers()}."
            )
        return self._for_framework(sheet, image, image_uri)

    def for_runtime_version(
        self, runtime_version: str, python_version: str
    ) -> RuntimeChoice | RuntimeRefusal:
        """SPEC §1.5, §4: a runtime version names several frameworks, so the nearest runtime stands in."""
        if not runtime_version:
            choice = self.default()
            if isinstance(choice, RuntimeRefusal):
                return choice
            note = f"No runtime version was asked for: the service's default is used, {_title(choice)}."
            return _with_notices(choice, note)
        sheet = self._families[0]
        asked = parse_minor(python_version)
        candidates = self._candidates(sheet, self._at_home(sheet, near=asked))
        if not candidates:
            return RuntimeRefusal(self._no_interpreter(sheet))
        best = candidates[0]
        choice = RuntimeChoice(sheet.family, best.release.version, format_minor(best.python))
        provided = sheet.provides(best.release)
        missing = [name for name in _RUNTIME_VERSION_PACKAGES if name not in provided]
        wanted = f"runtime version {runtime_version} (TensorFlow {runtime_version}" + (
            f", Python {python_version})" if python_version else ")"
        )
        if self._exact:
            return RuntimeRefusal(
                f"{_capital(wanted)} cannot be had here exactly, and the service is set to refuse "
                f"substitutes. The nearest would be {_title(choice)}."
            )
        return _with_notices(
            choice,
            f"{_capital(wanted)} was asked for and cannot be had here: the job runs in {_title(choice)}. "
            f"Missing there: {', '.join(missing)}. What the program needs of them, name in its package's "
            "install_requires.",
        )

    def _for_framework(
        self, sheet: Sheet, image: PrebuiltImage, uri: str
    ) -> RuntimeChoice | RuntimeRefusal:
        python = parse_minor(image.python) or (3, 0)
        wanted = parse_minor(image.version) or (0, 0)
        # Ask for the whole list only when the service's own Python is not the one: it may need a search.
        running = self._pythons.running()
        pythons = [running] if running == python else self._pythons.found()
        candidates = self._candidates(sheet, pythons)
        if not any(each.release.version == image.version for each in candidates):
            candidates = self._candidates(sheet, self._pythons.found())
        if not candidates:
            return RuntimeRefusal(self._no_interpreter(sheet))
        best = min(
            candidates,
            key=lambda each: (
                _distance(parse_minor(each.release.version) or (0, 0), wanted),
                _distance(each.python, python),
            ),
        )
        choice = RuntimeChoice(sheet.family, best.release.version, format_minor(best.python))
        notices: list[str] = []
        if (best.release.version, best.python) != (image.version, python):
            asked = f"{sheet.title} {image.version} on Python {image.python}"
            if self._exact:
                return RuntimeRefusal(
                    f"{uri} means {asked}, which cannot be had here exactly, and the service is set to "
                    f"refuse substitutes. The nearest would be {_title(choice)}."
                )
            notices.append(
                f"{uri} means {asked}, which cannot be had here: the job runs in {_title(choice)}."
            )
        if sheet.missing:
            notices.append(
                f"Not every package of that image is installed here; left out: {', '.join(sheet.missing)}. "
                "What the program needs of them, name in its package's install_requires."
            )
        return _with_notices(choice, *notices)

    def _at_home(self, sheet: Sheet, near: Minor | None = None) -> list[Minor]:
        """Pythons in the order to try: the preferred ones first; nearest to `near`, or the service's own."""
        running = self._pythons.running()
        low, high = sheet.preferred_pythons
        if near is None and low <= running <= high:
            return [running]
        return sorted(
            self._pythons.found(),
            key=lambda python: (
                not low <= python <= high,
                _distance(python, near) if near else -_flat(python),
            ),
        )

    def _candidates(self, sheet: Sheet, pythons: Iterable[Minor]) -> list[_Candidate]:
        return [
            _Candidate(release, python)
            for python in pythons
            for release in sheet.releases
            if release.runs_on(python)
        ]

    def _offers(self) -> str:
        served = {sheet.framework for sheet in self._families if sheet.framework}
        names = (_IMAGES + name + ":latest" for name in listed_images())
        offers = [
            uri for uri in names if (image := parse_prebuilt(uri)) and image.framework in served
        ]
        return ", ".join(offers) or "none"

    def _no_interpreter(self, sheet: Sheet) -> str:
        low = min(release.pythons[0] for release in sheet.releases)
        high = max(release.pythons[1] for release in sheet.releases)
        return (
            f"No interpreter that {sheet.title} runs on was found on this machine. Install a Python from "
            f"{format_minor(low)} to {format_minor(high)} and start the service again."
        )


def _not_prebuilt(uri: str) -> str:
    hint = nearest_prebuilt(uri) if "vertex-ai/training/" in uri else ""
    return (
        f"{uri} is not one of the prebuilt training images, and running a custom container image needs a "
        f"container engine, which this version of the service does not use.{hint}"
    )


def _title(choice: RuntimeChoice) -> str:
    sheet = sheet_of(choice.family)
    title = sheet.title if sheet else choice.family
    framework = f"{title} {choice.version}" if choice.version else title
    return f"{framework} on Python {choice.python_version}"


def _with_notices(choice: RuntimeChoice, *notices: str) -> RuntimeChoice:
    return RuntimeChoice(choice.family, choice.version, choice.python_version, notices)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _flat(version: Minor) -> int:
    return version[0] * 1000 + version[1]


def _distance(one: Minor, other: Minor) -> int:
    return abs(_flat(one) - _flat(other))
