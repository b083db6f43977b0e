"""How a dataset was split, in words (facts/models#lineage)."""

from typing import Any

import pytest

from trainshed.api.trainshed_v1.models import split_text


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, ""),
        ({"datasetId": "7"}, ""),
        ({"fractionSplit": {}}, "fraction"),
        ({"fractionSplit": {"trainingFraction": 0.9}}, "fraction 0.9/0/0"),
        ({"predefinedSplit": {"key": "use"}}, "predefined by use"),
        (
            {"filterSplit": {"trainingFilter": "labels.a=b", "validationFilter": "-"}},
            "filter training: labels.a=b validation: -",
        ),
    ],
)
def test_a_split_in_words(config: dict[str, Any], text: str) -> None:
    assert split_text(config) == text
