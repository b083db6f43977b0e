"""Which runtime stands for an image or a runtime version (SPEC §1.5, §4; facts §5.1, §5.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from trainshed.core.runtime import RuntimeChoice, RuntimeRefusal
from trainshed.runtimes.catalog import LocalCatalog
from trainshed.runtimes.families import FAMILIES
from trainshed.runtimes.sheet import Minor, format_minor, parse_minor

_IMAGES = "us-docker.pkg.dev/vertex-ai/training/"


@dataclass
class Pythons:
    """Interpreters that a test says are there; `searches` counts how often the whole machine was asked."""

    own: Minor
    others: tuple[Minor, ...] = ()
    searches: int = 0

    def running(self) -> Minor:
        return self.own

    def found(self) -> Sequence[Minor]:
        self.searches += 1
        return sorted({self.own, *self.others}, reverse=True)


def _chosen(answer: RuntimeChoice | RuntimeRefusal) -> RuntimeChoice:
    assert isinstance(answer, RuntimeChoice), answer
    return answer


def _refused(answer: RuntimeChoice | RuntimeRefusal) -> str:
    assert isinstance(answer, RuntimeRefusal), answer
    return answer.reason


@pytest.mark.parametrize("name", ["sklearn-cpu.1-6", "scikit-learn-cpu.1-6", "sklearn-gpu.1-6"])
@pytest.mark.parametrize("continent", ["us", "europe", "asia"])
def test_an_image_of_a_served_framework_is_exact_where_its_python_is_found(
    name: str, continent: str
) -> None:
    """SPEC §4."""
    catalog = LocalCatalog(Pythons((3, 12), ((3, 10),)))
    uri = f"{continent}-docker.pkg.dev/vertex-ai/training/{name}:latest"
    choice = _chosen(catalog.for_image(uri))
    assert (choice.family, choice.version, choice.python_version) == ("scikit-learn", "1.6", "3.10")
    assert not any("cannot be had" in notice for notice in choice.notices)
    assert any("pandas" in notice for notice in choice.notices)


def test_the_same_minor_version_on_another_python_comes_before_another_version() -> None:
    """SPEC §4: nearest, with a notice that says what was asked and what is there."""
    choice = _chosen(
        LocalCatalog(Pythons((3, 12), ((3, 7),))).for_image(_IMAGES + "sklearn-cpu.1-6:latest")
    )
    assert (choice.version, choice.python_version) == ("1.6", "3.12")
    assert "scikit-learn 1.6 on Python 3.10" in choice.notices[0]
    assert "scikit-learn 1.6 on Python 3.12" in choice.notices[0]


def test_an_old_version_without_its_python_becomes_the_nearest_version() -> None:
    choice = _chosen(LocalCatalog(Pythons((3, 11))).for_image(_IMAGES + "sklearn-cpu.1-0:latest"))
    assert (choice.version, choice.python_version) == ("1.6", "3.11")
    assert "cannot be had here" in choice.notices[0]


def test_the_machine_is_not_searched_where_the_own_python_is_exact() -> None:
    pythons = Pythons((3, 10))
    _chosen(LocalCatalog(pythons).for_image(_IMAGES + "sklearn-cpu.1-6:latest"))
    _chosen(LocalCatalog(pythons).for_runtime_version("", ""))
    assert pythons.searches == 0


@pytest.mark.parametrize("name", ["tf-cpu.2-11", "pytorch-gpu.1-13.py310", "xgboost-cpu.1-6"])
def test_another_framework_is_refused_and_the_nearest_are_named(name: str) -> None:
    """SPEC §4: never replaced by an environment without that framework."""
    reason = _refused(LocalCatalog(Pythons((3, 11))).for_image(f"{_IMAGES}{name}:latest"))
    assert "sklearn-cpu.1-6:latest" in reason
    assert name in reason


@pytest.mark.parametrize("uri", ["python:3.11", "gcr.io/my-project/trainer:v1", "busybox"])
def test_a_custom_image_needs_a_container_engine(uri: str) -> None:
    reason = _refused(LocalCatalog(Pythons((3, 11))).for_image(uri))
    assert uri in reason
    assert "container engine" in reason


def test_an_unlisted_prebuilt_image_gets_a_hint() -> None:
    reason = _refused(LocalCatalog(Pythons((3, 11))).for_image(_IMAGES + "sklearn-cpu.1-5:latest"))
    assert "sklearn-cpu.1-6" in reason


def test_a_reduction_server_image_is_refused() -> None:
    uri = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
    assert "Reduction Server" in _refused(LocalCatalog(Pythons((3, 11))).for_image(uri))


def test_a_runtime_version_gets_the_nearest_runtime_and_is_told_what_is_missing() -> None:
    """SPEC §4 and the public guide's runtimeVersion 2.6 with Python 3.7."""
    pythons = Pythons((3, 12), ((3, 13), (3, 10), (3, 7)))
    choice = _chosen(LocalCatalog(pythons).for_runtime_version("2.6", "3.7"))
    assert (choice.family, choice.version, choice.python_version) == ("scikit-learn", "1.7", "3.10")
    (notice,) = choice.notices
    for part in ("2.6", "TensorFlow 2.6", "Python 3.7", "scikit-learn 1.7 on Python 3.10"):
        assert part in notice
    missing = notice.partition("Missing there:")[2]
    assert "tensorflow" in missing
    assert "numpy" not in missing


def test_no_runtime_version_is_the_default_with_a_notice() -> None:
    """SPEC §1.5."""
    choice = _chosen(LocalCatalog(Pythons((3, 11))).for_runtime_version("", ""))
    assert (choice.family, choice.version, choice.python_version) == ("scikit-learn", "1.9", "3.11")
    assert "default" in choice.notices[0]


def test_exact_refuses_substitutes_but_not_the_default() -> None:
    """SPEC §4: an operator's setting."""
    catalog = LocalCatalog(Pythons((3, 11)), exact=True)
    assert "refuse" in _refused(catalog.for_runtime_version("2.6", "3.7"))
    assert "refuse" in _refused(catalog.for_image(_IMAGES + "sklearn-cpu.1-6:latest"))
    _chosen(catalog.for_runtime_version("", ""))


def test_without_a_fitting_interpreter_the_refusal_says_which_would_do() -> None:
    reason = _refused(LocalCatalog(Pythons((3, 5))).for_runtime_version("", ""))
    assert "Install a Python" in reason


def test_families_by_name() -> None:
    catalog = LocalCatalog(Pythons((3, 11)))
    assert _chosen(catalog.default("python")) == RuntimeChoice("python", "", "3.11")
    assert "scikit-learn, python" in _refused(catalog.default("fortran"))


def test_the_sheets_are_in_order() -> None:
    """Newest first is what `default` relies on, and no two families stand for one framework."""
    for sheet in FAMILIES:
        versions = [parse_minor(release.version) or (0, 0) for release in sheet.releases]
        assert versions == sorted(versions, reverse=True)
        assert all(release.pythons[0] <= release.pythons[1] for release in sheet.releases)
    frameworks = [sheet.framework for sheet in FAMILIES if sheet.framework]
    assert len(frameworks) == len(set(frameworks))


def test_minor_versions_read_and_write() -> None:
    assert parse_minor("3.10.13") == (3, 10)
    assert parse_minor("latest") is None
    assert format_minor((3, 10)) == "3.10"
