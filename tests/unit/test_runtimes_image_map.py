"""An operator's image map: which entry an image gets, and what cannot be an entry
(spec/runtimes#substitutes)."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from trainshed.core.runtime import CONTAINER, RuntimeChoice, RuntimeRefusal
from trainshed.runtimes.catalog import LocalCatalog
from trainshed.runtimes.sheet import Minor
from trainshed.serve.setting_types import MappedImages, convert

_SKLEARN = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest"


@dataclass
class Pythons:
    own: Minor = (3, 12)
    others: tuple[Minor, ...] = ((3, 11),)

    def usual(self) -> Minor:
        return self.own

    def found(self) -> Sequence[Minor]:
        return sorted({self.own, *self.others}, reverse=True)


class Engine:
    """Runs only what is local."""

    def refusal(self, reference: str) -> str:
        return "" if reference.startswith("localhost/") else f"{reference} is not here; pull it."


def _catalog(text: str, *, exact: bool = False, engine: bool = True) -> LocalCatalog:
    entries = convert("images", MappedImages, tomllib.loads(text).get("images", []))
    images = Engine() if engine else None
    return LocalCatalog(Pythons(), exact=exact, image_map=entries, images=images)


def _chosen(catalog: LocalCatalog, uri: str) -> RuntimeChoice:
    answer = catalog.for_image(uri)
    assert isinstance(answer, RuntimeChoice), answer
    return answer


def _refused(catalog: LocalCatalog, uri: str) -> str:
    answer = catalog.for_image(uri)
    assert isinstance(answer, RuntimeRefusal), answer
    return answer.reason


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
def test_the_first_entry_that_fits_gives_the_runtime(
    uri: str, expected: tuple[str, str, str], engine: bool
) -> None:
    """spec/runtimes#images: images that cannot be pulled run in an environment of that kind, with or without
    a container engine."""
    choice = _chosen(_catalog(_PYTHONS, engine=engine), uri)
    assert (choice.family, choice.version, choice.python_version) == expected
    (notice,) = choice.notices
    assert uri in notice
    assert "operator's setting" in notice


def test_an_entry_wins_over_the_prebuilt_names() -> None:
    text = '[[images]]\npattern = "*/sklearn-cpu.1-6:*"\nimage = "localhost/sklearn:1"\n'
    choice = _chosen(_catalog(text), _SKLEARN)
    assert (choice.family, choice.image) == (CONTAINER, "localhost/sklearn:1")
    assert "localhost/sklearn:1" in choice.notices[0]
    assert "container engine" in _refused(_catalog(text, engine=False), _SKLEARN)


def test_runtime_versions_are_mapped_under_a_name_of_their_own() -> None:
    """spec/runtimes#images: they name images too, of several frameworks."""
    text = '[[images]]\npattern = "runtimeVersion:2.*"\nruntime = "scikit-learn 1.6"\n'
    catalog = _catalog(text, exact=True)
    choice = catalog.for_runtime_version("2.6", "3.7")
    assert isinstance(choice, RuntimeChoice)
    assert (choice.family, choice.version) == ("scikit-learn", "1.6")
    assert "runtimeVersion:2.6 is mapped" in choice.notices[0]
    assert isinstance(catalog.for_runtime_version("1.15", "3.7"), RuntimeRefusal)


def test_a_python_that_is_not_here_is_told_or_refused() -> None:
    """spec/runtimes#substitutes: nearest with a notice; `exact` refuses."""
    text = '[[images]]\npattern = "python:3.8"\nruntime = "python"\npython = "3.8"\n'
    choice = _chosen(_catalog(text), "python:3.8")
    assert choice.python_version == "3.11"
    assert "3.8" in choice.notices[0].partition("the job runs in")[2]
    assert "refuse" in _refused(_catalog(text, exact=True), "python:3.8")


@pytest.mark.parametrize(
    ("entry", "key", "word"),
    [
        ('runtime = "python"', "pattern", "missing"),
        ('pattern = ""\nruntime = "python"', "pattern", "missing"),
        ('pattern = "a"', "runtime", "neither"),
        ('pattern = "a"\nruntime = "python"\nimage = "b"', "runtime", "both"),
        ('pattern = "a"\nruntime = "tensorflwo"', "runtime", "Did you mean tensorflow?"),
        ('pattern = "a"\nruntime = "tensorflow 9.9"', "runtime", "2.21"),
        ('pattern = "a"\nruntime = "python 3.11"', "runtime", "leave it out"),
        ('pattern = "a"\nruntime = "tensorflow 2.6"\npython = "3.13"', "python", "tensorflow 2.6"),
        ('pattern = "a"\nruntime = "python"\npython = "three"', "python", "three"),
        ('pattern = "a"\nruntime = "python"\npython = 3.1', "python", "text"),
        ('pattern = "a"\nimage = "b"\npython = "3.11"', "python", "runtime only"),
        ('pattern = "a"\nimage = "https://b"', "image", "HOST/NAME:TAG"),
        ('pattern = "a"\nruntme = "python"', "runtme", "Did you mean runtime?"),
    ],
)
def test_what_cannot_be_an_entry_is_named_with_its_key(entry: str, key: str, word: str) -> None:
    with pytest.raises(ValueError, match=rf"^images\[1\]\.{key}: ") as refused:
        _catalog(f'[[images]]\npattern = "z"\nimage = "y"\n[[images]]\n{entry}\n')
    assert word in str(refused.value)


def test_all_that_is_wrong_is_named_at_once() -> None:
    tables = [{"pattern": "a", "image": "b"}, {"pattern": "a", "runtime": "x"}, {}]
    with pytest.raises(ValueError, match="pattern 'a' has two tables") as refused:
        convert("images", MappedImages, tables)
    places = [line.partition(":")[0] for line in str(refused.value).splitlines()]
    assert places == ["images[1].runtime", "images[2].pattern", "images[2].runtime", "images"]
