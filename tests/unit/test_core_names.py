"""Parsing of resource names."""

import pytest

from trainshed.core.errors import InvalidRequest
from trainshed.core.names import EvaluationName, ModelName, StudyName

LOCATION = "projects/p/locations/l"


def test_resource_name_is_parsed_into_project_location_and_identifiers() -> None:
    model = ModelName("p", "l", "m")
    assert ModelName.parse(f"{LOCATION}/models/m") == (model, "")
    assert ModelName.parse(f"{LOCATION}/models/m@2") == (model, "2")
    assert EvaluationName.parse(f"{LOCATION}/models/m/evaluations/7") == EvaluationName(model, 7)
    assert EvaluationName.parse(f"{LOCATION}/models/m@2/evaluations/7") == EvaluationName(model, 7)
    assert StudyName.parse_trial(f"{LOCATION}/studies/s/trials/{10**19 - 1}")[1] == 2**63 - 1


@pytest.mark.parametrize("end", ["", "/", "/s/t", "/s/trials", "/s@1"])
def test_error_of_a_malformed_resource_name_contains_the_field_name(end: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        StudyName.parse(f"{LOCATION}/studies{end}", of="parent")
    [violation] = refused.value.violations
    assert violation.field == "parent"
    assert violation.description.endswith(
        "is not a name of the form projects/PROJECT/locations/LOCATION/studies/STUDY."
    )


@pytest.mark.parametrize("end", ["m@", "@1", "m@1@2", "m/1"])
def test_model_name_with_an_empty_or_second_version_separator_is_rejected(end: str) -> None:
    with pytest.raises(InvalidRequest):
        ModelName.parse(f"{LOCATION}/models/{end}")


@pytest.mark.parametrize("number", ["", "-1", "1.5", "٣", "1" * 20])
def test_trial_number_must_consist_of_ascii_digits(number: str) -> None:
    with pytest.raises(InvalidRequest):
        StudyName.parse_trial(f"{LOCATION}/studies/s/trials/{number}")
