"""Chooses the runtime for a job. It is the exact runtime if that is available, and otherwise the nearest one,
with a notice.

This module builds nothing. It reads data sheets, this machine's interpreters, and the operator's image map.
"""

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.catalog.images import (
    PrebuiltImage,
    image_for_name,
    is_python2,
    is_reduction_server,
    is_reference,
    list_images,
    nearest_prebuilt,
    parse_prebuilt,
)
from trainshed.core.errors import closest
from trainshed.core.runtime import CONTAINER, REDUCERS, RuntimeChoice, RuntimeRefusal
from trainshed.runtimes.families import FAMILIES, Minor, Release, Sheet, format_minor, parse_minor, sheet_of
from trainshed.runtimes.images.cluster import ContainerImages
from trainshed.runtimes.interpreters import Interpreters

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
"""Well-known packages of runtime versions (facts runtime_versions.json). A notice lists the packages of this
set that a substitute lacks."""
_OLDEST_OF_UV: Minor = (3, 8)
"""The oldest Python version that uv installs."""
_HOW_TO_MAP = (
    "The operator of this service can map it to a runtime or to another image, with an entry of [[images]] "
    "in the configuration."
)

_NAME_THEM = (
    "Add the packages that the program needs: --requirements of trainshed run, requirements=[…] of the SDK,"
    " install_requires of its setup.py."
)


class MappedImage(Struct, frozen=True):
    """One table `[[images]]` of the configuration: a pattern, and either another image or a runtime. The
    first pattern that matches the image URI of a job applies (spec/runtimes#substitutes)."""

    #: Pattern of image URIs. `*`, `?` and `[…]` match any characters of the URI, including slashes.
    pattern: str = ""
    #: A framework family, such as `tensorflow`, with an optional version; None if `image` is set.
    runtime: str | None = None
    #: Python version; None = the preferred one of the framework family.
    python: str | None = None
    #: Another image; None if `runtime` is set.
    image: str | None = None

    @property
    def family(self) -> str:
        return (self.runtime or "").partition(" ")[0]

    @property
    def version(self) -> str | None:
        """Version of the framework family, or None for the newest one."""
        return (self.runtime or "").partition(" ")[2] or None

    def faults(self) -> Iterator[str]:
        """Yield the errors in the table, as `key: text`."""
        if not self.pattern:
            yield "pattern: is missing; set a pattern of image names, such as python:3.*"
        if bool(self.runtime) == bool(self.image):
            cause = "both are set" if self.image else "neither is set"
            yield f"runtime: set exactly one of runtime and image; {cause}"
        if self.runtime:
            yield from self._runtime_faults()
        elif self.python:
            yield "python: applies only to runtime, because an image has its own Python"
        if self.image and not is_reference(self.image):
            yield f"image: {self.image!r} is not an image name such as HOST/NAME:TAG"

    def _runtime_faults(self) -> Iterator[str]:
        sheet = sheet_of(self.family)
        if sheet is None:
            names = [known.family for known in FAMILIES]
            near = closest(self.family, names)
            yield f"runtime: {self.family!r} does not exist; choose one of {', '.join(names)}.{near}"
            return
        releases = [r for r in sheet.releases if self.version in (None, r.version)]
        if not releases:
            versions = ", ".join(release.version for release in sheet.releases if release.version)
            known = f"choose one of {versions}" if versions else "omit the version"
            yield f"runtime: {sheet.title} has no version {self.version!r} here; {known}"
            return
        minor = parse_minor(self.python)
        if self.python and (minor is None or not any(r.runs_on(minor) for r in releases)):
            yield f"python: {self.runtime} does not run on {self.python!r}; set a version such as 3.11"


class Candidate(Struct, frozen=True):
    """One version of a framework, together with a Python of this machine on which it runs."""

    release: Release
    python: Minor

    def is_exactly(self, version: str, python: Minor) -> bool:
        """Whether this is that version of the framework, in any build, on that Python."""
        return self.release.base == version and self.python == python


def newest(
    sheet: Sheet, pythons: Interpreters, version: str | None = None, near: Minor | None = None
) -> Candidate | None:
    """Return the newest release, or the release of `version`, on the Python of this machine that is nearest
    to `near`. Return None if no Python fits. `near`: None = the preferred Python of the framework family.

    If the usual Python fits, the machine is not searched for other Pythons.
    """
    usual = pythons.usual()
    low, high = sheet.preferred_pythons
    exact = [release for release in sheet.releases if release.version == version]
    releases = exact or [release for release in sheet.releases if not release.for_gpu and not release.is_slim]
    at_once = low <= usual <= high if near is None else usual == near
    candidates = _candidates(releases, [usual]) if at_once else []
    if not candidates:
        ordered = sorted(
            pythons.found(),
            key=lambda python: (
                (not low <= python <= high, -_flat(python))
                if near is None
                else (False, _distance(python, near))
            ),
        )
        candidates = _candidates(releases, ordered)
    # Candidates are in the order of the Pythons (best first). For each Python, they are in the order of the
    # sheet (newest release first).
    return candidates[0] if candidates else None


def nearest(
    sheet: Sheet, pythons: Interpreters, version: str, python: Minor, *, for_gpu: bool, slim: bool = False
) -> Candidate | None:
    """Return the release nearest to `version`, on the Python of this machine that is nearest to `python`.
    Return None if no Python fits. `for_gpu`, `slim`: also allow builds for GPUs, or slim builds. Among
    equally near releases, these builds are preferred."""
    wanted = parse_minor(version) or (0, 0)
    releases = [
        release
        for release in sheet.releases
        if (for_gpu or not release.for_gpu) and (slim or not release.is_slim)
    ]
    # The list of all Pythons may require a search, so use it only if the usual Python does not fit.
    usual = pythons.usual()
    if sheet.usual_python:
        python = usual
    candidates = _candidates(releases, [usual] if usual == python else pythons.found())
    if not any(candidate.is_exactly(version, python) for candidate in candidates):
        candidates = _candidates(releases, pythons.found())
    return min(
        candidates,
        key=lambda candidate: (
            _distance(parse_minor(candidate.release.version) or (0, 0), wanted),
            _distance(candidate.python, python),
            not candidate.release.is_slim,
            not candidate.release.for_gpu,
        ),
        default=None,
    )


def _candidates(releases: Iterable[Release], pythons: Iterable[Minor]) -> list[Candidate]:
    kept = tuple(releases)
    return [Candidate(release, python) for python in pythons for release in kept if release.runs_on(python)]


def _flat(version: Minor) -> int:
    return version[0] * 1000 + version[1]


def _distance(version: Minor, other: Minor) -> int:
    return abs(_flat(version) - _flat(other))


class LocalCatalog:
    """Implements `core.runtime.RuntimeCatalog` for the runtimes that this machine builds."""

    def __init__(
        self,
        pythons: Interpreters,
        *,
        exact: bool = False,
        image_map: Sequence[MappedImage] = (),
        images: "ContainerImages | None" = None,
        has_gpu: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pythons = pythons
        #: Whether to refuse every substitution (a setting of the operator).
        self._exact = exact
        #: The operator's map of images to runtimes. Its first matching entry overrides all other rules.
        self._image_map = image_map
        #: The container images; None if the service cannot run them.
        self._images = images
        #: Returns whether this machine has a GPU. Called only for GPU images.
        self._has_gpu = has_gpu
        # Cache the choices: most jobs use one of a few images, and the releases and Pythons do not change.
        self._prebuilt = lru_cache(maxsize=256)(self._choose_for_prebuilt)

    def for_family(
        self, family: str, version: str | None = None, python: str | None = None
    ) -> RuntimeChoice | RuntimeRefusal:
        """Return the release of a framework family in that version on that Python, or the nearest available
        one. None selects the newest version, or the preferred Python."""
        sheet = sheet_of(family)
        if sheet is None:
            return RuntimeRefusal(unknown_family_message(family))
        if version and sheet.release(version) is None:
            versions = ", ".join(release.version for release in sheet.releases if release.version)
            return RuntimeRefusal(
                f"{sheet.title} {version} does not exist here. Choose one of: {versions or 'no versions'}."
            )
        candidate = newest(sheet, self._pythons, version, parse_minor(python))
        return _choice(sheet, candidate) if candidate else RuntimeRefusal(_no_interpreter(sheet, version))

    def is_mapped(self, image_uri: str) -> bool:
        """Return whether the operator's image map has an entry for the image."""
        return self._entry_of(image_uri) is not None

    def for_image(self, image_uri: str) -> RuntimeChoice | RuntimeRefusal:
        """Return the runtime for an image (spec/runtimes#substitutes). The first rule that applies decides:

        - the operator's mapping
        - for a reduction-server image, our own reducers (spec/reduction#exactness)
        - for a prebuilt image, its framework at the same or nearest version
        - for any other image, a container, if the service runs containers
        """
        if entry := self._entry_of(image_uri):
            return self._choose_mapped(entry, image_uri)
        if is_reduction_server(image_uri):
            return self.for_family(REDUCERS)
        image = parse_prebuilt(image_uri)
        if image is None:
            return self._container(image_uri)
        return self._prebuilt(image, image_uri, image.device == "gpu" and self._has_gpu())

    def default(self) -> RuntimeChoice | RuntimeRefusal:
        """Return the runtime of jobs without an image and a runtime version. It is the runtime of the newest
        prebuilt image of the default framework family, so that both share one environment."""
        sheet = FAMILIES[0]
        image = parse_prebuilt(image_for_name(sheet.family) or "")
        assert image is not None, "the default family has prebuilt images"
        python = parse_minor(image.python) or (3, 0)
        candidate = nearest(sheet, self._pythons, image.version, python, for_gpu=False)
        return _choice(sheet, candidate) if candidate else RuntimeRefusal(_no_interpreter(sheet))

    def for_runtime_version(
        self, runtime_version: str, python_version: str
    ) -> RuntimeChoice | RuntimeRefusal:
        """Return the runtime for a runtime version (spec/submit#defaults, spec/runtimes#substitutes). It is
        the operator's mapping, for example of `runtimeVersion:2.6`, or the nearest runtime with the
        frameworks of that version."""
        if not runtime_version:
            choice = self.default()
            if isinstance(choice, RuntimeRefusal):
                return choice
            note = f"The job sets no runtime version. It runs in the service's default, {_title(choice)}."
            return _with_notices(choice, note)
        if entry := self._entry_of(name := f"runtimeVersion:{runtime_version}"):
            return self._choose_mapped(entry, name)
        old = is_python2(runtime_version, python_version)
        python = parse_minor(python_version) or (3, 0)
        sheets = [sheet for sheet in FAMILIES if sheet.runtime_versions]
        # Try the default framework family last, for the case that no Python here is suitable for the other
        # families.
        for sheet in (*sheets, FAMILIES[0]):
            candidate = nearest(sheet, self._pythons, runtime_version, python, for_gpu=False)
            if candidate:
                choice = self._runtime_version(sheet, candidate, runtime_version, python_version)
                is_choice = isinstance(choice, RuntimeChoice)
                return replace(choice, implicit_imports=old) if is_choice else choice
        return RuntimeRefusal(_no_interpreter(sheets[0] if sheets else FAMILIES[0]))

    def _runtime_version(
        self, sheet: Sheet, candidate: Candidate, runtime_version: str, python_version: str
    ) -> RuntimeChoice | RuntimeRefusal:
        choice = _choice(sheet, candidate)
        provided = sheet.provides(candidate.release)
        missing = ", ".join(name for name in _RUNTIME_VERSION_PACKAGES if name not in provided)
        wanted = f"Runtime version {runtime_version} (TensorFlow {runtime_version}" + (
            f", Python {python_version})" if python_version else ")"
        )
        here = ", ".join(sorted(provided.intersection(_RUNTIME_VERSION_PACKAGES)))
        python = parse_minor(python_version) or candidate.python
        if sheet.runtime_versions and candidate.is_exactly(runtime_version, python):
            note = f"{wanted} is available with {here}."
            if not missing:
                return _with_notices(choice, note)
            note += f" Not installed: {missing}."
        elif self._exact:
            how = _how_to_get(sheet, runtime_version, python)
            return _inexact(f"{wanted} is not available here exactly", choice, how)
        else:
            choice = replace(choice, is_exact=False)
            note = (
                f"{wanted} is not available here. The job runs in {_title(choice)}, "
                f"with {here}.{_how_to_get(sheet, runtime_version, python)}"
            )
            if not missing:
                return _with_notices(choice, note)
            note += f" Not installed there: {missing}."
        return _with_notices(choice, f"{note} {_NAME_THEM}")

    def _entry_of(self, uri: str) -> MappedImage | None:
        entries = self._image_map
        return next((entry for entry in entries if fnmatch.fnmatchcase(uri, entry.pattern)), None)

    def _choose_mapped(self, entry: MappedImage, uri: str) -> RuntimeChoice | RuntimeRefusal:
        mapping = f"The operator maps {uri} (setting images, pattern {entry.pattern!r})"
        if entry.image:
            reason = _refusal(self._images, entry.image)
            if reason:
                return RuntimeRefusal(f"{mapping} to the image {entry.image}. {reason}")
            notices = (f"{mapping}: the job runs in the image {entry.image}.",)
            return RuntimeChoice(
                family=CONTAINER, version="", python_version="", notices=notices, image=entry.image
            )
        choice = self.for_family(entry.family, entry.version, entry.python)
        if isinstance(choice, RuntimeRefusal):
            return RuntimeRefusal(f"{mapping}. {choice.reason}")
        other_python = ""
        if entry.python and entry.python != choice.python_version:
            other_python = f" on Python {entry.python}"
        if other_python and self._exact:
            return _inexact(f"{mapping} to a runtime{other_python}, not available here", choice)
        note = f"{mapping}: the job runs in {_title(choice)}"
        return _with_notices(
            replace(choice, is_exact=other_python == ""),
            f"{note};{other_python} it is not available here." if other_python else f"{note}.",
        )

    def _container(self, uri: str) -> RuntimeChoice | RuntimeRefusal:
        if "/vertex-ai-restricted/training/" in uri or "/vertex-ai/training/reductionserver" in uri:
            return RuntimeRefusal(
                f"{uri} is unknown here. The image of the Reduction Server is "
                "us-docker.pkg.dev/vertex-ai-restricted/training/"
                f"reductionserver:latest (or europe-, asia-). {_HOW_TO_MAP}"
            )
        if "-docker.pkg.dev/vertex-ai/training/" in uri:
            # The URI is most likely misspelled, so refuse it now and not when the pull fails.
            return RuntimeRefusal(
                f"{uri} is not in the list of prebuilt training images.{nearest_prebuilt(uri)} {_HOW_TO_MAP}"
            )
        reason = _refusal(self._images, uri)
        if not reason:
            return RuntimeChoice(family=CONTAINER, version="", python_version="", image=uri)
        return RuntimeRefusal(
            f"{uri} is not one of the prebuilt training images, which run here by name (trainshed runtimes"
            f" lists them). {reason} {_HOW_TO_MAP}"
        )

    def _choose_for_prebuilt(
        self, image: PrebuiltImage, uri: str, has_gpu: bool
    ) -> RuntimeChoice | RuntimeRefusal:
        sheet = next((sheet for sheet in FAMILIES if sheet.framework == image.framework), None)
        if sheet is None:
            return RuntimeRefusal(
                f"This service has no runtime with {image.framework} {image.version} ({uri}), and other "
                f"frameworks cannot replace it. The nearest available images: {self._offers()}. "
                f"{_HOW_TO_MAP}"
            )
        python = parse_minor(image.python) or (3, 0)
        candidate = nearest(sheet, self._pythons, image.version, python, for_gpu=has_gpu, slim=image.slim)
        if candidate is None:
            return RuntimeRefusal(_no_interpreter(sheet))
        choice = _choice(sheet, candidate)
        notices: list[str] = []
        if not candidate.is_exactly(image.version, python):
            wish = f"{uri} contains {sheet.title} {image.version} on Python {image.python}"
            how = _how_to_get(sheet, image.version, python)
            if self._exact:
                return _inexact(f"{wish}, which is not available here exactly", choice, how)
            choice = replace(choice, is_exact=False)
            notices.append(f"{wish}, which is not available here. The job runs in {_title(choice)}.{how}")
        changes = sheet.changes_since(image.version, candidate.release)
        notices += [
            f"As before {sheet.title} {format_minor(change.since)}, {change.before} "
            f"({change.old_way.variable}={change.old_way.value})."
            for change in changes
        ]
        # If the framework family has no build for GPUs, the user cannot expect one, so no notice is
        # necessary.
        has_builds = any(release.for_gpu for release in sheet.releases)
        if image.device == "gpu" and has_builds and not candidate.release.for_gpu:
            reason = (
                f"{_title(choice)} is not available here with CUDA" if has_gpu else "this machine has no GPU"
            )
            notices.append(f"{uri} is an image for GPUs, but {reason}: it is built for CPUs.")
        lacks = () if image.slim else sheet.lacks(candidate.release, candidate.python)
        if missed := [package for package in lacks if package.device in (None, image.device)]:
            packages = ", ".join(map(str, missed))
            notices.append(f"Packages of that image that are not installed here: {packages}. {_NAME_THEM}")
        old_ways = tuple(change.old_way for change in changes)
        return replace(_with_notices(choice, *notices), old_ways=old_ways)

    def _offers(self) -> str:
        """Return a text that lists the newest image of every available framework."""
        served = {sheet.framework for sheet in FAMILIES if sheet.framework}
        newest_of: dict[str, str] = {}
        for name in list_images():
            uri = f"{_IMAGES}{name}:latest"
            image = parse_prebuilt(uri)
            if image and image.framework in served:
                newest_of.setdefault(image.framework, uri)
        return ", ".join(newest_of.values()) or "none"


def unknown_family_message(family: str) -> str:
    """Return an error message that lists the existing framework families."""
    known = ", ".join(sheet.family for sheet in FAMILIES)
    return f"The runtime family {family!r} does not exist. Choose one of: {known}."


def _refusal(images: "ContainerImages | None", reference: str) -> str | None:
    if images is None:
        return "Running it requires a container engine, and this service has none."
    return images.refusal(reference)


def _inexact(what: str, choice: RuntimeChoice, how: str = "") -> RuntimeRefusal:
    return RuntimeRefusal(
        f"{what}, and this service refuses substitutes (setting exact_runtimes). The nearest runtime is "
        f"{_title(choice)}.{how}"
    )


def _how_to_get(sheet: Sheet, version: str, python: Minor) -> str:
    """Return a sentence, after a space, that explains how to install the Python that an exact version needs.
    Return "" if the version cannot run on that Python."""
    if not any(release.base == version and release.runs_on(python) for release in sheet.releases):
        return ""
    number = format_minor(python)
    tool = "uv python" if python >= _OLDEST_OF_UV else "pyenv"
    return (
        f" This machine lacks Python {number}. Install it with `{tool} install {number}`, and restart the "
        "service."
    )


def _no_interpreter(sheet: Sheet, version: str | None = None) -> str:
    releases = [release for release in sheet.releases if version in (None, release.version)]
    low = min(release.pythons[0] for release in releases)
    high = max(release.pythons[1] for release in releases)
    return (
        f"This machine has no Python that {sheet.title} runs on. Install a Python from "
        f"{format_minor(low)} to {format_minor(high)}, and restart the service."
    )


def _choice(sheet: Sheet, candidate: Candidate) -> RuntimeChoice:
    return RuntimeChoice(
        family=sheet.family, version=candidate.release.version, python_version=format_minor(candidate.python)
    )


def _title(choice: RuntimeChoice) -> str:
    sheet = sheet_of(choice.family)
    title = sheet.title if sheet else choice.family
    framework = f"{title} {choice.version}" if choice.version else title
    return f"{framework} on Python {choice.python_version}"


def _with_notices(choice: RuntimeChoice, *notices: str) -> RuntimeChoice:
    return replace(choice, notices=notices)
