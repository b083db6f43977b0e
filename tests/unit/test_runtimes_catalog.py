"""Tests of the runtime for an image or a runtime version (spec/submit#defaults, spec/runtimes#substitutes;
facts/packaging#runtime-versions, facts/packaging#images), and of an operator's image map."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from trainshed.core.runtime import CONTAINER, RuntimeChoice, RuntimeRefusal
from trainshed.runtimes.catalog import LocalCatalog, MappedImage
from trainshed.runtimes.families import FAMILIES, Minor, sheet_of
from trainshed.runtimes.images.cluster import ClusterImages
from trainshed.runtimes.interpreters import Interpreters
from trainshed.serve.setting_types import MappedImages, convert

_IMAGES = "us-docker.pkg.dev/vertex-ai/training/"


@dataclass
class Pythons(Interpreters):
    """Simulated interpreters."""

    own: Minor
    others: tuple[Minor, ...] = ()

    def usual(self) -> Minor:
        return self.own

    def found(self) -> Sequence[Minor]:
        return sorted({self.own, *self.others}, reverse=True)


def get_choice(answer: RuntimeChoice | RuntimeRefusal) -> RuntimeChoice:
    assert isinstance(answer, RuntimeChoice), answer
    return answer


def get_refusal(answer: RuntimeChoice | RuntimeRefusal) -> str:
    assert isinstance(answer, RuntimeRefusal), answer
    return answer.reason


def test_requested_version_on_a_different_python_is_the_nearest_substitute() -> None:
    """spec/runtimes#substitutes: A notice contains the requested and the used version."""
    choice = get_choice(
        LocalCatalog(Pythons((3, 12), ((3, 7),))).for_image(_IMAGES + "sklearn-cpu.1-6:latest")
    )
    assert (choice.version, choice.python_version) == ("1.6", "3.12")
    assert "scikit-learn 1.6 on Python 3.10" in choice.notices[0]
    assert "scikit-learn 1.6 on Python 3.12" in choice.notices[0]


@pytest.mark.parametrize(
    ("image", "python", "command"),
    [
        ("tf-cpu.2-8", "3.7", "pyenv install 3.7"),
        ("sklearn-cpu.1-6", "3.10", "uv python install 3.10"),
        ("pytorch-cpu.2-0", "", ""),
    ],
)
def test_error_of_a_missing_python_contains_an_install_command(image: str, python: str, command: str) -> None:
    """The error contains no command if no other Python would help: PyTorch has only one version, and uv
    offers no Python below 3.8."""
    uri = f"{_IMAGES}{image}:latest"
    choice = get_choice(LocalCatalog(Pythons((3, 11))).for_image(uri))
    refusal = get_refusal(LocalCatalog(Pythons((3, 11)), exact=True).for_image(uri))
    assert not choice.is_exact
    assert "exact_runtimes" in refusal
    for text in (choice.notices[0], refusal):
        assert (f"lacks Python {python}. Install it with `{command}`" in text) == bool(command)
        assert ("install" in text) == bool(command)
    if python:
        there = LocalCatalog(Pythons((3, 11), ((3, int(python[2:])),)), exact=True)
        assert get_choice(there.for_image(uri)).is_exact


@pytest.mark.parametrize("name", ["ray-cpu.2-47.py311", "ray-gpu.2-9.py310"])
def test_unknown_framework_is_rejected_with_the_nearest_names(name: str) -> None:
    """spec/runtimes#environments: the service never substitutes an environment without the framework."""
    reason = get_refusal(LocalCatalog(Pythons((3, 11))).for_image(f"{_IMAGES}{name}:latest"))
    assert name in reason
    for offer in ("sklearn-cpu.1-6", "xgboost-cpu.2-1", "pytorch-xla.2-4.py310", "tf-cpu.2-17"):
        assert offer in reason
    assert "[[images]]" in reason


@pytest.mark.parametrize(
    ("name", "pythons", "expected"),
    [
        ("tf-cpu.2-6", ((3, 11), (3, 7)), ("tensorflow", "2.6", "3.7")),
        ("training-tf-cpu.2-1", ((3, 11), (3, 7)), ("tensorflow", "2.1", "3.7")),
        ("tf-cpu.2-17.py310", ((3, 11), (3, 10)), ("tensorflow", "2.17", "3.10")),
        ("tf-cpu.1-15", ((3, 7),), ("tensorflow", "1.15", "3.7")),
        ("tf-cpu.2-6", ((3, 11),), ("tensorflow", "2.12", "3.11")),
        ("tf-cpu.2-17.py310", ((3, 13),), ("tensorflow", "2.21", "3.13")),
        ("xgboost-cpu.1-6", ((3, 11), (3, 10)), ("xgboost", "1.6", "3.10")),
        ("xgboost-cpu.1-1", ((3, 11),), ("xgboost", "2.1", "3.11")),
        ("scikit-learn-cpu.0-23", ((3, 11), (3, 7)), ("scikit-learn", "0.23", "3.7")),
        ("sklearn-cpu.1-6", ((3, 12), (3, 10)), ("scikit-learn", "1.6", "3.10")),
    ],
)
def test_prebuilt_image_name_selects_the_runtime_with_the_nearest_version(
    name: str, pythons: tuple[Minor, ...], expected: tuple[str, str, str]
) -> None:
    """spec/runtimes#substitutes: The exact version and interpreter if available, otherwise the framework's
    nearest version."""
    choice = get_choice(LocalCatalog(Pythons(pythons[0], pythons)).for_image(f"{_IMAGES}{name}:latest"))
    assert (choice.family, choice.version, choice.python_version) == expected
    version = name.partition("-cpu.")[2].partition(".py")[0].replace("-", ".")
    missing = any("is not available here" in notice for notice in choice.notices)
    assert missing == (choice.version != version)


def test_tpu_notice_is_only_for_jobs_with_tpus() -> None:
    """The public PyTorch image without GPUs has XLA in its name, but does not imply a TPU."""
    catalog = LocalCatalog(Pythons((3, 11)))
    for device, is_told in (("xla", False), ("gpu", False), ("tpu", True)):
        choice = get_choice(catalog.for_image(f"{_IMAGES}pytorch-{device}.2-4.py310:latest"))
        assert any("torch-xla (no TPU" in notice for notice in choice.notices) is is_told, device


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("pytorch-xla.2-4.py310", ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"]),
        ("pytorch-cpu.1-4", ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"]),
        ("tf-cpu.2-4", []),
    ],
)
def test_jobs_for_older_pytorch_images_get_a_variable_that_allows_loading_checkpoints(
    name: str, variables: list[str]
) -> None:
    """Since 2.6, `torch.load` rejects most objects; programs for older images do not set `weights_only`."""
    catalog = LocalCatalog(Pythons((3, 11)))
    choice = get_choice(catalog.for_image(f"{_IMAGES}{name}:latest"))
    assert [way.variable for way in choice.old_ways] == variables
    assert any("torch.load" in notice for notice in choice.notices) == bool(variables)
    # A job that requests the runtime by name gets it unchanged.
    assert not get_choice(catalog.for_family("pytorch")).old_ways


def test_framework_version_takes_precedence_over_the_cuda_version() -> None:
    """spec/runtimes#substitutes: A notice reports a build for CPUs."""
    catalog = LocalCatalog(Pythons((3, 11), ((3, 10), (3, 7))), has_gpu=lambda: True)
    exact = get_choice(catalog.for_image(_IMAGES + "tf-gpu.2-16.py310:latest"))
    assert (exact.version, exact.python_version) == ("2.16+cuda12", "3.10")
    assert not any("not available here" in notice for notice in exact.notices)
    old = get_choice(catalog.for_image(_IMAGES + "tf-gpu.2-6:latest"))
    assert old.version == "2.6"
    assert any("with CUDA" in notice for notice in old.notices)


@dataclass
class Engine(ClusterImages):
    """A simulated container engine that runs images with a certain prefix."""

    here: str = ""

    def refusal(self, reference: str) -> str | None:
        return None if reference.startswith(self.here) else f"{reference} is not here, pull it."


def test_custom_image_is_run_in_a_container_if_an_engine_is_available() -> None:
    """spec/runtimes#images."""
    catalog = LocalCatalog(Pythons((3, 11)), images=Engine("gcr.io/"))
    choice = get_choice(catalog.for_image("gcr.io/p/trainer:v1"))
    assert (choice.family, choice.image, choice.notices) == (CONTAINER, "gcr.io/p/trainer:v1", ())
    assert "pull it" in get_refusal(catalog.for_image("gone:v1"))


@pytest.mark.parametrize("region", ["us", "europe", "asia"])
def test_public_reduction_server_images_run_the_reducers_of_this_project(region: str) -> None:
    """spec/runtimes#substitutes: The images of every region use our reducers, without a notice. An operator's
    map takes precedence (spec/reduction)."""
    uri = f"{region}-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
    catalog = LocalCatalog(Pythons((3, 12), ((3, 8),)), exact=True)
    assert catalog.for_image(uri) == RuntimeChoice("reduction-server", "", "3.12")
    entries = [MappedImage("*/reductionserver:*", image="mine:v1")]
    mapping = LocalCatalog(Pythons((3, 12)), image_map=entries, images=Engine())
    assert get_choice(mapping.for_image(uri)).image == "mine:v1"


@pytest.mark.parametrize("version", ["2.6", "1.15", "2.11"])
def test_runtime_version_selects_the_exact_framework_versions_and_python(version: str) -> None:
    """spec/runtimes#substitutes: The public runtimeVersion 2.6 with Python 3.7: nothing is substituted."""
    catalog = LocalCatalog(Pythons((3, 12), ((3, 13), (3, 10), (3, 7))), exact=True)
    choice = get_choice(catalog.for_runtime_version(version, "3.7"))
    assert (choice.family, choice.version) == ("tensorflow", version)
    assert choice.python_version == "3.7"
    (notice,) = choice.notices
    for name in ("numpy", "pandas", "scikit-learn", "statsmodels", "tensorflow", "xgboost"):
        assert name in notice
    assert "Not installed" not in notice


@pytest.mark.parametrize(
    ("version", "python", "pythons", "here"),
    [
        ("1.14", "3.5", ((3, 12), (3, 7)), ("tensorflow", "1.15", "3.7")),
        ("1.15", "2.7", ((3, 12), (3, 7)), ("tensorflow", "1.15", "3.7")),
        ("2.6", "3.7", ((3, 11),), ("tensorflow", "2.12", "3.11")),
        ("2.6", "3.7", ((3, 14),), ("scikit-learn", "1.9", "3.14")),
    ],
)
def test_runtime_version_substitute_reports_missing_frameworks(
    version: str, python: str, pythons: tuple[Minor, ...], here: tuple[str, str, str]
) -> None:
    """spec/runtimes#substitutes: The notice contains the requested, used and missing frameworks. TensorFlow
    is omitted only if it is unavailable."""
    catalog = LocalCatalog(Pythons(pythons[0], pythons))
    choice = get_choice(catalog.for_runtime_version(version, python))
    assert (choice.family, choice.version, choice.python_version) == here
    (notice,) = choice.notices
    for part in (f"TensorFlow {version}", f"Python {python}", f"on Python {here[2]}"):
        assert part in notice
    missing = notice.partition(" Not installed there: ")[2].partition(".")[0]
    assert ("tensorflow" in missing) == (here[0] != "tensorflow")
    # Without missing packages, there is no advice to add them.
    assert bool(missing) == ("Add the packages that the program needs" in notice)


@pytest.mark.parametrize(
    ("version", "python", "is_old"),
    [
        *(("1.14", "", True), ("1.0", "", True), ("1.15", "2.7", True), ("1.4", "2.7", True)),
        *(("1.14", "3.5", False), ("1.15", "", False), ("2.6", "", False), ("", "", False)),
    ],
)
def test_runtime_versions_with_python_2_allow_implicit_relative_imports(
    version: str, python: str, is_old: bool
) -> None:
    catalog = LocalCatalog(Pythons((3, 12), ((3, 12), (3, 7))))
    choice = get_choice(catalog.for_runtime_version(version, python))
    assert choice.implicit_imports is is_old


def test_exact_mode_rejects_substituted_runtimes_but_accepts_an_omitted_version() -> None:
    """spec/runtimes#substitutes: an operator enables exact mode with the setting `exact_runtimes`."""
    catalog = LocalCatalog(Pythons((3, 11)), exact=True)
    assert "TensorFlow 2.12" in get_refusal(catalog.for_runtime_version("2.6", "3.7"))
    assert "refuse" in get_refusal(catalog.for_image(_IMAGES + "sklearn-cpu.1-6:latest"))
    get_choice(catalog.for_runtime_version("", ""))


def test_runtime_selected_by_name_uses_the_nearest_available_python() -> None:
    catalog = LocalCatalog(Pythons((3, 11), ((3, 7), (3, 9))))
    assert get_choice(catalog.for_family("tensorflow", "2.6")).python_version == "3.9"
    assert get_choice(catalog.for_family("tensorflow", "2.6", "3.7")).python_version == "3.7"
    assert "2.21" in get_refusal(catalog.for_family("tensorflow", "9.9"))
    assert "3.7 to 3.8" in get_refusal(LocalCatalog(Pythons((3, 11))).for_family("tensorflow", "2.4"))


def test_lock_files_contain_the_packages_of_the_runtime_data_sheets() -> None:
    """spec/runtimes#environments: Environments are installed from locks only. After a change of a release,
    run `./dev lock`."""
    for sheet in FAMILIES:
        for release in sheet.releases:
            lines = sheet.lock(release).read_text().splitlines()
            assert lines == sorted(lines)
            pinned = {line.partition("=")[0] for line in lines}
            packages = {re.sub(r"[._]", "-", name) for name in sheet.provides(release)}
            assert packages <= pinned, (sheet.family, release.version)
            assert not pinned & set(release.excluded)
            framework = {"pytorch": "torch"}.get(sheet.family, sheet.family)
            if release.base:
                assert any(re.match(rf"{framework}===?{release.base}\b", line) for line in lines)
    torch = sheet_of("pytorch")
    assert torch is not None
    (cuda,) = (release for release in torch.releases if release.for_gpu)
    # `==` would also match a build for CPUs, if the machine's index has one.
    assert "torch===2.13.0" in torch.lock(cuda).read_text().splitlines()


# --- an operator's image map ---

SKLEARN = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest"


def mapping(text: str, *, exact: bool = False, engine: bool = True) -> LocalCatalog:
    entries = convert("images", MappedImages, tomllib.loads(text).get("images", []))
    images = Engine("localhost/") if engine else None
    return LocalCatalog(Pythons((3, 12), ((3, 11),)), exact=exact, image_map=entries, images=images)


_PYTHONS = """
[[images]]
pattern = "python:3.11*"
runtime = "python"
python = "3.11"
[[images]]
pattern = "python:*"
runtime = "python"
[[images]]
pattern = "*/team/*"
runtime = "tensorflow 2.17"
"""


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("python:3.11", ("python", "", "3.11")),
        ("python:3.11-slim", ("python", "", "3.11")),
        ("python:3", ("python", "", "3.12")),
        ("gcr.io/team/a/b:v1", ("tensorflow", "2.17", "3.12")),
    ],
)
@pytest.mark.parametrize("engine", [True, False])
def test_first_matching_entry_of_the_image_map_selects_the_runtime(
    uri: str, expected: tuple[str, str, str], engine: bool
) -> None:
    """spec/runtimes#images: an entry may replace an image that cannot be pulled by a runtime, with or without
    a container engine."""
    choice = get_choice(mapping(_PYTHONS, engine=engine).for_image(uri))
    assert (choice.family, choice.version, choice.python_version) == expected
    (notice,) = choice.notices
    assert uri in notice
    assert "The operator maps" in notice


def test_image_map_entry_overrides_the_runtime_of_a_prebuilt_image() -> None:
    text = '[[images]]\npattern = "*/sklearn-cpu.1-6:*"\nimage = "localhost/sklearn:1"\n'
    choice = get_choice(mapping(text).for_image(SKLEARN))
    assert (choice.family, choice.image) == (CONTAINER, "localhost/sklearn:1")
    assert "localhost/sklearn:1" in choice.notices[0]
    assert "container engine" in get_refusal(mapping(text, engine=False).for_image(SKLEARN))


def test_image_map_entry_for_a_runtime_version_selects_the_runtime() -> None:
    """spec/runtimes#images: A runtime version is an image with several frameworks."""
    text = '[[images]]\npattern = "runtimeVersion:2.*"\nruntime = "scikit-learn 1.6"\n'
    catalog = mapping(text, exact=True)
    choice = get_choice(catalog.for_runtime_version("2.6", "3.7"))
    assert (choice.family, choice.version) == ("scikit-learn", "1.6")
    assert "maps runtimeVersion:2.6" in choice.notices[0]
    get_refusal(catalog.for_runtime_version("1.15", "3.7"))


@pytest.mark.parametrize(
    ("entry", "key", "word"),
    [
        ('runtime = "python"', "pattern", "missing"),
        ('pattern = ""\nruntime = "python"', "pattern", "missing"),
        ('pattern = "a"', "runtime", "neither"),
        ('pattern = "a"\nruntime = "python"\nimage = "b"', "runtime", "both"),
        ('pattern = "a"\nruntime = "tensorflwo"', "runtime", "Did you mean tensorflow?"),
        ('pattern = "a"\nruntime = "tensorflow 9.9"', "runtime", "2.21"),
        ('pattern = "a"\nruntime = "python 3.11"', "runtime", "omit the version"),
        ('pattern = "a"\nruntime = "tensorflow 2.6"\npython = "3.13"', "python", "tensorflow 2.6"),
        ('pattern = "a"\nruntime = "python"\npython = "three"', "python", "three"),
        ('pattern = "a"\nruntime = "python"\npython = 3.1', "python", "text"),
        ('pattern = "a"\nimage = "b"\npython = "3.11"', "python", "only to runtime"),
        ('pattern = "a"\nimage = "https://b"', "image", "HOST/NAME:TAG"),
        ('pattern = "a"\nruntme = "python"', "runtme", "Did you mean runtime?"),
    ],
)
def test_error_of_an_invalid_image_map_entry_names_the_invalid_key(entry: str, key: str, word: str) -> None:
    with pytest.raises(ValueError, match=rf"^images\[1\]\.{key}: ") as refusal:
        mapping(f'[[images]]\npattern = "z"\nimage = "y"\n[[images]]\n{entry}\n')
    assert word in str(refusal.value)


def test_all_invalid_image_map_entries_are_reported_together() -> None:
    tables = [{"pattern": "a", "image": "b"}, {"pattern": "a", "runtime": "x"}, {}]
    with pytest.raises(ValueError, match="two tables have the pattern 'a'") as refusal:
        convert("images", MappedImages, tables)
    places = [line.partition(":")[0] for line in str(refusal.value).splitlines()]
    assert places == ["images[1].runtime", "images[2].pattern", "images[2].runtime", "images"]


def test_missing_python_of_an_image_map_entry_is_substituted_or_rejected() -> None:
    """spec/runtimes#substitutes: the nearest Python is used with a notice. Exact mode rejects the job."""
    text = '[[images]]\npattern = "python:3.8"\nruntime = "python"\npython = "3.8"\n'
    choice = get_choice(mapping(text).for_image("python:3.8"))
    assert choice.python_version == "3.11"
    assert "3.8" in choice.notices[0].partition("the job runs in")[2]
    assert "refuse" in get_refusal(mapping(text, exact=True).for_image("python:3.8"))
