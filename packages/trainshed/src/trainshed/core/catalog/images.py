"""Reads the URIs of prebuilt training images and of the reduction-server image (facts/machines#bandwidth,
facts/packaging#images). Contains the runtime versions of `ml` v1 with their Pythons
(facts/packaging#runtime-versions, spec/submit#defaults).

Also reads the old image names of both products, such as `training-tf-cpu.2-1` and `pytorch-cpu.1-4`, and the
former `gcr.io` repositories of these images.
"""

import functools
import re

from msgspec import Struct

from trainshed.core.catalog.tables import table
from trainshed.core.errors import closest

_REPOSITORY = (
    r"(?:(?:us|europe|asia)-docker\.pkg\.dev/vertex-ai/training/"
    r"|gcr\.io/cloud-aiplatform/training/"
    r"|gcr\.io/cloud-ml-public/training/)"
)
_IMAGE_NAME = (
    r"(?:training-)?(?P<framework>[a-z][a-z-]*?)-(?P<device>cpu|gpu|tpu|xla)"
    r"\.(?P<major>\d+)-(?P<minor>\d+)(?:\.(?:py|cp)(?P<python>3\d+))?"
)
_NAME = re.compile(_IMAGE_NAME)
_IMAGE = re.compile(_REPOSITORY + _IMAGE_NAME + r"(?::(?P<tag>latest|slim))?")
# In PyTorch's oldest images, the name contains the Python version, and the tag contains the framework
# version: `gcr.io/cloud-ml-public/pytorch_cpu_2_7:1_0_preview`.
_FIRST = re.compile(
    r"gcr\.io/cloud-ml-public/(?P<framework>pytorch)_(?P<device>cpu|gpu)_(?P<python>\d_\d+)"
    r":(?P<version>\d+_\d+)(?:_\w+)?"
)
_REDUCTION_SERVER = re.compile(
    r"(?:us|europe|asia)-docker\.pkg\.dev/vertex-ai-restricted/training/reductionserver(?::[\w.-]+)?"
)
_FRAMEWORKS = {
    "tf": "tensorflow",
    "tensorflow": "tensorflow",
    "pytorch": "pytorch",
    "scikit-learn": "scikit-learn",
    "sklearn": "scikit-learn",
    "xgboost": "xgboost",
    "ray": "ray",
}
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_HOST = r"(?=[^/]*[.:]|localhost/)(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]+)?/"
_REFERENCE = re.compile(
    rf"(?:{_HOST})?{_PART}(?:/{_PART})*(?::[\w][\w.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?", re.ASCII
)
NO_REFERENCE = "is not an image name such as HOST/PROJECT/NAME:TAG, with lowercase letters before the tag."


class PrebuiltImage(Struct, frozen=True):
    """The framework and the Python version that a prebuilt image contains."""

    #: The canonical name of the framework, such as `tensorflow` or `scikit-learn`.
    framework: str
    device: str
    #: Version of the framework as `major.minor`.
    version: str
    #: Version of Python as `major.minor`.
    python: str
    #: Whether the image has the tag `slim`, which only this service supports. The environment then contains
    #: only the framework and the essential packages.
    slim: bool = False


@functools.cache
def _releases_by_version() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the Python versions of the listed images by (framework, `major.minor`), in the order of the
    table."""
    releases: dict[tuple[str, str], tuple[str, ...]] = {}
    for framework, version, python in table("images")["images"].values():
        key = (framework, ".".join(version.split(".")[:2]))
        releases[key] = tuple(dict.fromkeys((*releases.get(key, ()), python)))
    return releases


@functools.lru_cache(1024)
def parse_prebuilt(uri: str) -> PrebuiltImage | None:
    """Parse the URI of a prebuilt training image. Return None if the table does not contain the image. A name
    without a Python suffix selects the oldest Python that is listed for its version. The tag must be
    `latest`, `slim` or absent."""
    if first := _FIRST.fullmatch(uri):
        version, python = (first[part].replace("_", ".") for part in ("version", "python"))
        return PrebuiltImage(
            framework=_FRAMEWORKS[first["framework"]], device=first["device"], version=version, python=python
        )
    match = _IMAGE.fullmatch(uri)
    if match is None or match["framework"] not in _FRAMEWORKS:
        return None
    framework = _FRAMEWORKS[match["framework"]]
    version = f"{match['major']}.{match['minor']}"
    pythons = _releases_by_version().get((framework, version))
    if pythons is None:
        return None
    python = f"3.{match['python'][1:]}" if match["python"] else min(pythons, key=_order)
    if python not in pythons:
        return None
    return PrebuiltImage(
        framework=framework,
        device=match["device"],
        version=version,
        python=python,
        slim=match["tag"] == "slim",
    )


def prebuilt_name(name: str) -> str | None:
    """Return the URI of the prebuilt image with this name, which contains no repository. Return None if no
    such image exists."""
    uri = f"us-docker.pkg.dev/vertex-ai/training/{name}"
    return uri if "/" not in name and parse_prebuilt(uri) else None


def list_images() -> tuple[str, ...]:
    """Return the image names of the public list, without repository and tag."""
    return tuple(table("images")["images"])


def short_names() -> tuple[str, ...]:
    """Return the framework names that `image_for_name` accepts, without duplicates."""
    return tuple(dict.fromkeys(framework for framework, _ in _releases_by_version() if framework != "ray"))


@functools.cache
def image_for_name(name: str, *, gpu: bool = False) -> str | None:
    """Return the URI of the listed image for a short name: `pytorch`, `tensorflow=2.11`, `tensorflow==2.11`
    or `tensorflow:2.11`. The defaults are the newest version, its newest Python, and CPUs. With `gpu`, the
    image is for GPUs. Return None if `name` is not a short name. Raise ValueError for an unlisted version.
    The error lists the available versions."""
    word, _, version = re.sub("==|:", "=", name, count=1).partition("=")
    framework = _FRAMEWORKS.get(word)
    if framework not in short_names():
        return None
    versions = [known for listed, known in _releases_by_version() if listed == framework]
    if version and version not in versions:
        listed_ones = ", ".join(sorted(versions, key=_order, reverse=True))
        raise ValueError(f"no image of {word} {version} exists; available versions: {listed_ones}")
    wanted = version or max(versions, key=_order)
    # Without `gpu`, prefer an image for CPUs. An image for GPUs is the last choice, because PyTorch has no
    # image for CPUs only.
    devices = ("gpu",) if gpu else ("cpu", "xla", "gpu")
    names = [
        (devices.index(match["device"]), -_version_key(python), image)
        for image, (_, listed_version, python) in table("images")["images"].items()
        if (match := _NAME.fullmatch(image))
        and _FRAMEWORKS[match["framework"]] == framework
        and ".".join(listed_version.split(".")[:2]) == wanted
        and match["device"] in devices
    ]
    if not names:
        raise ValueError(f"{word} {wanted} has no image for GPUs; use another version")
    _, _, image = min(names)
    return f"us-docker.pkg.dev/vertex-ai/training/{image}:latest"


def nearest_prebuilt(uri: str) -> str:
    """Return `" Did you mean …?"` with the listed image whose name is most similar to `uri`, or "" if none is
    similar."""
    name, names = uri.rsplit("/", 1)[-1].split(":", maxsplit=1)[0], list_images()
    return closest(name, (*names, *(listed.partition(".py")[0] for listed in names)))


def is_reduction_server(uri: str) -> bool:
    """Return whether the URI is that of a reduction-server image (facts/machines#bandwidth)."""
    return _REDUCTION_SERVER.fullmatch(uri) is not None


def is_reference(uri: str) -> bool:
    """Return whether the text is a valid image reference."""
    return _REFERENCE.fullmatch(uri) is not None


def _version_key(version: str) -> int:
    """Return the sort key of a version `major.minor`, which compares both parts as numbers."""
    major, minor = version.split(".")
    return int(major) * 10_000 + int(minor)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@functools.cache
def runtime_versions() -> dict[str, tuple[str, ...]]:
    """Return the Python versions of each runtime version. Versions ascend from the oldest to the newest."""
    return {
        version: tuple(pythons) for version, pythons in table("runtime_versions")["pythonVersions"].items()
    }


def newest() -> str:
    """Return the newest runtime version. Jobs that specify no runtime version follow the rules of this
    version."""
    return next(reversed(runtime_versions()))


def default_python(runtime_version: str) -> str:
    """Return the default Python of a runtime version: its newest Python. Raise KeyError for an unknown
    version."""
    return runtime_versions()[runtime_version][-1]


def pair_fault(runtime_version: str, python_version: str) -> str | None:
    """Return an error in the public wording (facts/limits#error-texts) if a runtime version and a Python
    version do not match. Return None if they match. "" selects the default runtime or the runtime's default
    Python."""
    known = runtime_versions()
    pythons = known.get(runtime_version or newest())
    if pythons is not None and (not python_version or python_version in pythons):
        return None
    if pythons is None:
        hint = f"Known versions: {', '.join(known)}."
    else:
        subject = f"Runtime version {runtime_version}" if runtime_version else "The default runtime"
        hint = f"{subject} supports Python {' or '.join(pythons)}."
    return (
        f"The specified runtime version '{runtime_version}' with the Python version "
        f"'{python_version}' is not supported or is deprecated.  Please specify a different "
        f"runtime version. {hint}"
    )


def is_python2(runtime_version: str, python_version: str) -> bool:
    """Return whether jobs with this runtime version and Python version ran on Python 2. Old runtimes used
    Python 2 by default."""
    pythons = runtime_versions().get(runtime_version, ())
    return (
        (python_version or "2.7") == "2.7"
        and "2.7" in pythons
        and (bool(python_version) or "3.7" not in pythons)
    )


def names_chief(runtime_version: str | None) -> bool:
    """Return whether TF_CONFIG of this runtime version contains `chief` rather than `master`
    (facts/program#tf_config). None selects the newest version."""
    return _order(runtime_version or newest()) >= _order(table("runtime_versions")["chiefFrom"])
