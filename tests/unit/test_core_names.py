"""How names of resources are read."""

import pytest

from trainshed.core.errors import InvalidRequest
from trainshed.core.names import EvaluationName, ModelName, StudyName

HERE = "projects/p/locations/l"


def test_parts_of_names_are_read() -> None:
    model = ModelName("p", "l", "m")
    assert ModelName.parse(f"{HERE}/models/m") == (model, "")
    assert ModelName.parse(f"{HERE}/models/m@2") == (model, "2")
    assert EvaluationName.parse(f"{HERE}/models/m/evaluations/7") == EvaluationName(model, 7)
    assert EvaluationName.parse(f"{HERE}/models/m@2/evaluations/7") == EvaluationName(model, 7)
    assert StudyName.parse_trial(f"{HERE}/studies/s/trials/{10**19 - 1}")[1] == 2**63 - 1


@pytest.mark.parametrize("end", ["", "/", "/s/t", "/s/trials", "/s@1"])
def test_names_of_another_form_are_refused_on_their_field(end: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        StudyName.parse(f"{HERE}/studies{end}", of="parent")
    [violation] = refused.value.violations
    assert violation.field == "parent"
    assert violation.description.endswith(
        "is not a name of the form projects/PROJECT/locations/LOCATION/studies/STUDY."
    )


@pytest.mark.parametrize("end", ["m@", "@1", "m@1@2", "m/1"])
def test_versions_follow_one_sign(end: str) -> None:
    with pytest.raises(InvalidRequest):
        ModelName.parse(f"{HERE}/models/{end}")


@pytest.mark.parametrize("number", ["", "-1", "1.5", "٣", "1" * 20])
def test_numbers_are_plain_digits(number: str) -> None:
    with pytest.raises(InvalidRequest):
        StudyName.parse_trial(f"{HERE}/studies/s/trials/{number}")
