"""Chooses the runtime for what a job asks for: the exact one if it is available, else the nearest, with a
notice.

It owns the choice only: it reads data sheets, the interpreters that were found and the operator's image map,
and builds nothing.
"""

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.catalog.images import (
    PrebuiltImage,
    is_python2,
    is_reduction_server,
    is_reference,
    listed_images,
    named_image,
    nearest_prebuilt,
    parse_prebuilt,
)
from trainshed.core.errors import closest
from trainshed.core.runtime import CONTAINER, REDUCERS, RuntimeChoice, RuntimeRefusal
from trainshed.runtimes.families import (
    FAMILIES,
    Minor,
    Release,
    Sheet,
    format_minor,
    parse_minor,
    sheet_of,
)
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
"""Well-known packages of runtime versions (facts runtime_versions.json), from which notices name what a
substitute lacks."""
_OLDEST_OF_UV: Minor = (3, 8)
"""The oldest Python that uv installs."""
_HOW_TO_MAP = (
    "The operator of this service can map it to a runtime or to another image, with an entry of [[images]] "
    "in the configuration."
)

_NAME_THEM = (
    "Add what the program needs: --requirements of trainshed run, requirements=[…] of the SDK,"
    " install_requires of its setup.py."
)


class MappedImage(Struct, frozen=True):
    """One table `[[images]]` of the configuration: a pattern, and either another image or a runtime. The
    first one whose pattern matches an image as the job names it wins (spec/runtimes#substitutes)."""

    #: `*`, `?` and `[…]` match over the whole image URI, slashes included.
    pattern: str = ""
    #: A runtime family, or one with its version; None if `image` is given.
    runtime: str | None = None
    #: Python version; None = the family's preferred one.
    python: str | None = None
    #: Another image; None if `runtime` is given.
    image: str | None = None

    @property
    def family(self) -> str:
        return (self.runtime or "").partition(" ")[0]

    @property
    def version(self) -> str | None:
        """Version of the family; None = the newest."""
        return (self.runtime or "").partition(" ")[2] or None

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the table, as `key: words`."""
        if not self.pattern:
            yield "pattern: is missing; give the images that are meant, such as python:3.*"
        if bool(self.runtime) == bool(self.image):
            cause = "both are given" if self.image else "neither is given"
            yield f"runtime: exactly one of runtime and image says what is run; {cause}"
        if self.runtime:
            yield from self._runtime_faults()
        elif self.python:
            yield "python: goes with runtime only; an image has a Python of its own"
        if self.image and not is_reference(self.image):
            yield f"image: {self.image!r} is not an image name such as HOST/NAME:TAG"

    def _runtime_faults(self) -> Iterator[str]:
        sheet = sheet_of(self.family)
        if sheet is None:
            names = [known.family for known in FAMILIES]
            near = closest(self.family, names)
            yield f"runtime: there is no runtime {self.family!r}; there are {', '.join(names)}.{near}"
            return
        releases = [r for r in sheet.releases if self.version in (None, r.version)]
        if not releases:
            versions = ", ".join(release.version for release in sheet.releases if release.version)
            known = f"there are {versions}" if versions else "it has none, leave it out"
            yield f"runtime: {sheet.title} has no version {self.version!r} here; {known}"
            return
        minor = parse_minor(self.python)
        if self.python and (minor is None or not any(r.runs_on(minor) for r in releases)):
            yield f"python: {self.python!r} is no Python, such as 3.11, that {self.runtime} runs on"


class Candidate(Struct, frozen=True):
    """A release, with a Python of this machine that it runs on."""

    release: Release
    python: Minor

    def is_exactly(self, version: str, python: Minor) -> bool:
        """Whether it is that version of the framework on that Python, whatever build of it."""
        return self.release.base == version and self.python == python


def newest(
    sheet: Sheet, pythons: Interpreters, version: str | None = None, near: Minor | None = None
) -> Candidate | None:
    """Return the newest release, or the one of `version`, on the Python nearest to `near`; None = on the
    family's preferred one. The machine is searched for Pythons only if the usual one does not fit. None if no
    Python here fits."""
    usual = pythons.usual()
    low, high = sheet.preferred_pythons
    exact = [release for release in sheet.releases if release.version == version]
    releases = exact or [
        release for release in sheet.releases if not release.for_gpu and not release.is_slim
    ]
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
    # Releases are in the sheet's order (newest first) for each Python.
    return candidates[0] if candidates else None


def nearest(
    sheet: Sheet,
    pythons: Interpreters,
    version: str,
    python: Minor,
    *,
    for_gpu: bool,
    slim: bool = False,
) -> Candidate | None:
    """Return the release nearest to `version`, on the Python nearest to `python`; None if no Python here
    fits. `for_gpu`, `slim`: prefer the build for GPUs, or the slim one, among equally near ones; without them
    no such release is taken."""
    wanted = parse_minor(version) or (0, 0)
    releases = [
        release
        for release in sheet.releases
        if (for_gpu or not release.for_gpu) and (slim or not release.is_slim)
    ]
    # List all Pythons only if the usual one does not fit, because that may need a search.
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
    return [
        Candidate(release, python)
        for python in pythons
        for release in kept
        if release.runs_on(python)
    ]


def _flat(version: Minor) -> int:
    return version[0] * 1000 + version[1]


def _distance(version: Minor, other: Minor) -> int:
    return abs(_flat(version) - _flat(other))


class LocalCatalog:
    """The `core.runtime.RuntimeCatalog` of runtimes built on this machine."""

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
        #: Whether to refuse every substitution, by the operator's setting.
        self._exact = exact
        #: The operator's map; its first matching entry wins over everything else.
        self._image_map = image_map
        #: None if container images cannot be run.
        self._images = images
        #: Whether this machine has a GPU; called only for images that are for GPUs.
        self._has_gpu = has_gpu
        # Nearly all jobs ask for one of a few images, and the releases and Pythons do not change.
        self._prebuilt = lru_cache(maxsize=256)(self._choose_for_prebuilt)

    def named(
        self, family: str, version: str | None = None, python: str | None = None
    ) -> RuntimeChoice | RuntimeRefusal:
        """Return a family's release of that version (None = its newest) on that Python or the nearest one
        available; None = the preferred one."""
        sheet = sheet_of(family)
        if sheet is None:
            return RuntimeRefusal(no_family(family))
        if version and sheet.release(version) is None:
            versions = ", ".join(release.version for release in sheet.releases if release.version)
            return RuntimeRefusal(
                f"There is no {sheet.title} {version} here; there are: {versions or 'no versions'}."
            )
        candidate = newest(sheet, self._pythons, version, parse_minor(python))
        return (
            _choice(sheet, candidate)
            if candidate
            else RuntimeRefusal(_no_interpreter(sheet, version))
        )

    def for_image(self, image_uri: str) -> RuntimeChoice | RuntimeRefusal:
        """Return the runtime for an image (spec/runtimes#substitutes): what the operator maps it to; our own
        reducers for a reduction-server image (spec/reduction#exactness); for a prebuilt image of a framework
        that is served, that framework at the same or nearest version; any other image as a container, if
        containers can be run."""
        if entry := self._entry_of(image_uri):
            return self._mapped(entry, image_uri)
        if is_reduction_server(image_uri):
            return self.named(REDUCERS)
        image = parse_prebuilt(image_uri)
        if image is None:
            return self._container(image_uri)
        return self._prebuilt(image, image_uri, image.device == "gpu" and self._has_gpu())

    def default(self) -> RuntimeChoice | RuntimeRefusal:
        """Return the runtime of jobs that name neither an image nor a runtime version: that of the newest
        prebuilt image of the default family, so that both share one environment."""
        sheet = FAMILIES[0]
        image = parse_prebuilt(named_image(sheet.family) or "")
        assert image is not None, "the default family has prebuilt images"
        python = parse_minor(image.python) or (3, 0)
        candidate = nearest(sheet, self._pythons, image.version, python, for_gpu=False)
        return _choice(sheet, candidate) if candidate else RuntimeRefusal(_no_interpreter(sheet))

    def for_runtime_version(
        self, runtime_version: str, python_version: str
    ) -> RuntimeChoice | RuntimeRefusal:
        """Return the runtime for a runtime version (spec/submit#defaults, spec/runtimes#substitutes): what
        the operator maps `runtimeVersion:2.6` to, for example; else the nearest runtime with its several
        frameworks."""
        if not runtime_version:
            choice = self.default()
            if isinstance(choice, RuntimeRefusal):
                return choice
            note = f"No runtime version was asked for: the service's default is used, {_title(choice)}."
            return _with_notices(choice, note)
        if entry := self._entry_of(name := f"runtimeVersion:{runtime_version}"):
            return self._mapped(entry, name)
        old = is_python2(runtime_version, python_version)
        python = parse_minor(python_version) or (3, 0)
        sheets = [sheet for sheet in FAMILIES if sheet.runtime_versions]
        # If none of those runs on a Python of this machine, the default is better than nothing.
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
            note = f"{wanted} is here with {here}."
            if not missing:
                return _with_notices(choice, note)
            note += f" Left out: {missing}."
        elif self._exact:
            how = _how_to_get(sheet, runtime_version, python)
            return _inexact(f"{wanted} cannot be had here exactly", choice, how)
        else:
            choice = replace(choice, is_exact=False)
            note = (
                f"{wanted} was asked for and cannot be had here: the job runs in {_title(choice)}, "
                f"with {here}.{_how_to_get(sheet, runtime_version, python)}"
            )
            if not missing:
                return _with_notices(choice, note)
            note += f" Missing there: {missing}."
        return _with_notices(choice, f"{note} {_NAME_THEM}")

    def _entry_of(self, uri: str) -> MappedImage | None:
        entries = self._image_map
        return next((entry for entry in entries if fnmatch.fnmatchcase(uri, entry.pattern)), None)

    def _mapped(self, entry: MappedImage, uri: str) -> RuntimeChoice | RuntimeRefusal:
        mapping = f"{uri} is mapped by an operator's setting (images, {entry.pattern!r})"
        if entry.image:
            reason = _refusal(self._images, entry.image)
            if reason:
                return RuntimeRefusal(f"{mapping} to the image {entry.image}. {reason}")
            notices = (f"{mapping}: the job runs in the image {entry.image}.",)
            return RuntimeChoice(CONTAINER, "", "", notices, entry.image)
        choice = self.named(entry.family, entry.version, entry.python)
        if isinstance(choice, RuntimeRefusal):
            return RuntimeRefusal(f"{mapping}. {choice.reason}")
        other_python = ""
        if entry.python and entry.python != choice.python_version:
            other_python = f" on Python {entry.python}"
        if other_python and self._exact:
            return _inexact(f"{mapping} to a runtime{other_python}, which is not here", choice)
        note = f"{mapping}: the job runs in {_title(choice)}"
        return _with_notices(
            replace(choice, is_exact=other_python == ""),
            f"{note};{other_python} it cannot be had here." if other_python else f"{note}.",
        )

    def _container(self, uri: str) -> RuntimeChoice | RuntimeRefusal:
        if "/vertex-ai-restricted/training/" in uri or "/vertex-ai/training/reductionserver" in uri:
            return RuntimeRefusal(
                f"{uri} is not known here. The Reduction Server's image is "
                "us-docker.pkg.dev/vertex-ai-restricted/training/"
                f"reductionserver:latest (or europe-, asia-). {_HOW_TO_MAP}"
            )
        if "-docker.pkg.dev/vertex-ai/training/" in uri:
            # Most likely misspelled: refused here, rather than when it cannot be pulled.
            return RuntimeRefusal(
                f"{uri} is not in the list of prebuilt training images.{nearest_prebuilt(uri)} {_HOW_TO_MAP}"
            )
        reason = _refusal(self._images, uri)
        if not reason:
            return RuntimeChoice(CONTAINER, "", "", image=uri)
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
                f"No runtime with {image.framework} {image.version} is served here ({uri}), and another "
                f"framework cannot stand in for it. The nearest that can be had: {self._offers()}. "
                f"{_HOW_TO_MAP}"
            )
        python = parse_minor(image.python) or (3, 0)
        candidate = nearest(
            sheet, self._pythons, image.version, python, for_gpu=has_gpu, slim=image.slim
        )
        if candidate is None:
            return RuntimeRefusal(_no_interpreter(sheet))
        choice = _choice(sheet, candidate)
        notices: list[str] = []
        if not candidate.is_exactly(image.version, python):
            wish = f"{uri} means {sheet.title} {image.version} on Python {image.python}"
            how = _how_to_get(sheet, image.version, python)
            if self._exact:
                return _inexact(f"{wish}, which cannot be had here exactly", choice, how)
            choice = replace(choice, is_exact=False)
            notices.append(
                f"{wish}, which cannot be had here: the job runs in {_title(choice)}.{how}"
            )
        changes = sheet.changed(image.version, candidate.release)
        notices += [
            f"As before {sheet.title} {format_minor(change.since)}, {change.before} "
            f"({change.old_way.variable}={change.old_way.value})."
            for change in changes
        ]
        # If no release is built for GPUs in particular, there is no notice to give.
        has_builds = any(release.for_gpu for release in sheet.releases)
        if image.device == "gpu" and has_builds and not candidate.release.for_gpu:
            reason = (
                f"{_title(choice)} cannot be had here with CUDA"
                if has_gpu
                else "no GPU was found here"
            )
            notices.append(f"{uri} is an image for GPUs; {reason}, so it is built for CPUs.")
        lacks = () if image.slim else sheet.lacks(candidate.release, candidate.python)
        if missed := [package for package in lacks if package.device in (None, image.device)]:
            packages = ", ".join(map(str, missed))
            notices.append(
                f"Packages of that image that are not installed here: {packages}. {_NAME_THEM}"
            )
        old_ways = tuple(change.old_way for change in changes)
        return replace(_with_notices(choice, *notices), old_ways=old_ways)

    def _offers(self) -> str:
        """Return the newest listed image of every framework that is served, as a text."""
        served = {sheet.framework for sheet in FAMILIES if sheet.framework}
        newest_of: dict[str, str] = {}
        for name in listed_images():
            uri = f"{_IMAGES}{name}:latest"
            image = parse_prebuilt(uri)
            if image and image.framework in served:
                newest_of.setdefault(image.framework, uri)
        return ", ".join(newest_of.values()) or "none"


def no_family(family: str) -> str:
    """Return a sentence that says so, and which there are."""
    known = ", ".join(sheet.family for sheet in FAMILIES)
    return f"There is no runtime family {family!r}; there are: {known}."


def _refusal(images: "ContainerImages | None", reference: str) -> str | None:
    if images is None:
        return "Running it takes a container engine, and this service has none."
    return images.refusal(reference)


def _inexact(what: str, choice: RuntimeChoice, how: str = "") -> RuntimeRefusal:
    return RuntimeRefusal(
        f"{what}, and the service is set to refuse substitutes (exact_runtimes). The nearest would be "
        f"{_title(choice)}.{how}"
    )


def _how_to_get(sheet: Sheet, version: str, python: Minor) -> str:
    """Return a sentence, after a space, that says how to get the Python without which a version cannot be had
    exactly; "" if there is no release of it for that Python."""
    if not any(release.base == version and release.runs_on(python) for release in sheet.releases):
        return ""
    number = format_minor(python)
    tool = "uv python" if python >= _OLDEST_OF_UV else "pyenv"
    return (
        f" What is missing on this machine is Python {number}: `{tool} install {number}` gets it, and the "
        "service uses it from its next start on."
    )


def _no_interpreter(sheet: Sheet, version: str | None = None) -> str:
    releases = [release for release in sheet.releases if version in (None, release.version)]
    low = min(release.pythons[0] for release in releases)
    high = max(release.pythons[1] for release in releases)
    return (
        f"No interpreter that {sheet.title} runs on was found on this machine. Install a Python from "
        f"{format_minor(low)} to {format_minor(high)} and start the service again."
    )


def _choice(sheet: Sheet, candidate: Candidate) -> RuntimeChoice:
    return RuntimeChoice(sheet.family, candidate.release.version, format_minor(candidate.python))


def _title(choice: RuntimeChoice) -> str:
    sheet = sheet_of(choice.family)
    title = sheet.title if sheet else choice.family
    framework = f"{title} {choice.version}" if choice.version else title
    return f"{framework} on Python {choice.python_version}"


def _with_notices(choice: RuntimeChoice, *notices: str) -> RuntimeChoice:
    return replace(choice, notices=notices)
