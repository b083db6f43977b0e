"""Names and fractions of a dataset's splits (facts/datasets#splits)."""

import time

import pytest

from trainshed.core.datasets.plans import completed, directory_name
from trainshed.core.datasets.schemas import FORMATS, annotation_of, annotation_uri
from trainshed.core.datasets.wildcards import matches


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((0.0, 0.0, 0.0), (0.8, 0.1, 0.1)),
        ((0.6, 0.0, 0.0), (0.6, 0.2, 0.2)),
        ((0.8, 0.2, 0.0), (0.8, 0.2, 0.0)),
        ((0.5, 0.3, 0.0), (0.5, 0.3, 0.2)),
        ((0.0, 0.1, 0.0), (0.8, 0.1, 0.1)),
        ((0.5, 0.2, 0.2), (0.6, 0.2, 0.2)),
        ((0.7, 0.2, 0.1 + 1e-12), (0.7, 0.2, 0.1)),
    ],
)
def test_what_fractions_leave_goes_to_the_splits_that_have_none(
    given: tuple[float, float, float], found: tuple[float, float, float]
) -> None:
    assert completed(given) == pytest.approx(found)


def test_the_directory_says_which_dataset_and_when() -> None:
    at = 1_760_000_000_123_456_789
    assert directory_name("7", "tables", at) == "dataset-7-tables-2025-10-09T08:53:20.123456Z"


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("a.csv", "a.csv", True),
        ("a.csv", "b.csv", False),
        ("d/*.csv", "d/a.csv", True),
        ("d/*.csv", "d/a/b.csv", False),
        ("d/**.csv", "d/a/b.csv", True),
        ("d/**/b.csv", "d/a/c/b.csv", True),
        ("d/?.csv", "d/a.csv", True),
        ("d/?.csv", "d/.csv", False),
        ("d/?", "d//", False),
        ("d/*.csv", "d/a.json", False),
        ("*", "", True),
        ("a*a", "a", False),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("[a]*", "[a]b", True),
    ],
)
def test_wildcards_stand_for_other_characters(pattern: str, name: str, found: bool) -> None:
    assert matches(pattern, name) is found


def test_a_pattern_of_stars_is_matched_at_once() -> None:
    began = time.process_time()
    assert not matches("*a**a*a**b", "a" * 1000)
    assert time.process_time() - began < 1


def test_annotation_schemas_are_known_by_their_uri() -> None:
    for form in FORMATS.values():
        assert annotation_of(annotation_uri(form.annotation)) == form.annotation
    assert annotation_of("gs://google-cloud-aiplatform/schema/dataset/annotation/x.yaml") == ""
    assert annotation_of("image_classification") == ""
