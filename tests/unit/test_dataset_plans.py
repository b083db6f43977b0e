"""Names and fractions of a dataset's splits (facts/datasets#splits)."""

import pytest

from trainshed.core.datasets.plans import completed
from trainshed.core.datasets.schemas import FORMATS, annotation_of, annotation_uri


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


def test_annotation_schemas_are_known_by_their_uri() -> None:
    for form in FORMATS.values():
        assert annotation_of(annotation_uri(form.annotation)) == form.annotation
    assert annotation_of("gs://google-cloud-aiplatform/schema/dataset/annotation/x.yaml") == ""
    assert annotation_of("image_classification") == ""
