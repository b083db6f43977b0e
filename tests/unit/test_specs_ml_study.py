"""`ml` v1 studies: what is refused, with which fields, and what a valid one becomes (spec/tuning#studies,
facts/tuning#vizier)."""

from typing import Any

import pytest

from trainshed.core.errors import InvalidRequest
from trainshed.core.specs.ml import parse_ml_study
from trainshed.core.study.spec import (
    Algorithm,
    DecayCurveStopping,
    Goal,
    MedianStopping,
    Metric,
    ParameterType,
    StudySpec,
)

Request = dict[str, Any]
PARAMETER = "study_config.parameters[0]"


def study(*parameters: Request, **config: Any) -> Request:
    return {
        "studyConfig": {
            "metrics": [{"metric": "y", "goal": "MAXIMIZE"}],
            "parameters": list(parameters) or [integer()],
            **config,
        }
    }


def integer(name: str = "n", **more: Any) -> Request:
    return {
        "parameter": name,
        "type": "INTEGER",
        "integerValueSpec": {"minValue": "1", "maxValue": "3"},
        **more,
    }


def parse(request: Request, study_id: str = "study_1") -> StudySpec:
    return parse_ml_study(request, study_id).spec


def violations(request: Request, study_id: str = "study_1") -> list[str]:
    with pytest.raises(InvalidRequest) as refusal:
        parse(request, study_id)
    assert all(v.description.strip() for v in refusal.value.violations)
    return [v.field for v in refusal.value.violations]


ONE_FAULT: dict[str, tuple[Request, str]] = {
    "no type": (study({**integer(), "type": ""}), f"{PARAMETER}.type"),
    "values of another type": (
        study({**integer(), "type": "DOUBLE"}),
        f"{PARAMETER}.double_value_spec",
    ),
    "values of two types": (
        study(integer(discreteValueSpec={"values": [1]})),
        f"{PARAMETER}.integer_value_spec",
    ),
    "child without condition": (
        study(integer(childParameterSpecs=[integer("m")])),
        f"{PARAMETER}.child_parameter_specs[0].parent_int_values",
    ),
    "child outside the parent": (
        study(integer(childParameterSpecs=[integer("m", parentIntValues={"values": ["1", "4"]})])),
        f"{PARAMETER}.child_parameter_specs[0].parent_int_values.values[1]",
    ),
    "grid of doubles": (
        study(
            {"parameter": "x", "type": "DOUBLE", "doubleValueSpec": {"maxValue": 1}},
            algorithm="GRID_SEARCH",
        ),
        "study_config.algorithm",
    ),
    "two rules": (
        study(
            automatedStoppingConfig={
                "decayCurveStoppingConfig": {},
                "medianAutomatedStoppingConfig": {},
            }
        ),
        "study_config.automated_stopping_config.median_automated_stopping_config",
    ),
}


@pytest.mark.parametrize("case", ONE_FAULT)
def test_refusal_names_the_field(case: str) -> None:
    """spec/submit#refusals, spec/tuning#studies: each rule by itself names the field that breaks it."""
    request, field = ONE_FAULT[case]
    assert violations(request) == [field]


def test_all_violations_are_reported_at_once() -> None:
    """spec/submit#refusals."""
    assert violations({}, "a/b") == ["study_id", "study_config.parameters", "study_config.metrics"]


def test_what_a_study_becomes() -> None:
    """spec/tuning#early-stopping: children of children, the algorithms' names, the stopping rule."""
    grandchild = integer("c", parentCategoricalValues={"values": ["u"]})
    child = {
        "parameter": "b",
        "type": "CATEGORICAL",
        "categoricalValueSpec": {"values": ["u", "v"]},
        "parentIntValues": {"values": ["2"]},
        "childParameterSpecs": [grandchild],
    }
    spec = parse(
        study(
            integer("a", childParameterSpecs=[child]),
            algorithm="GAUSSIAN_PROCESS_BANDIT",
            automatedStoppingConfig={"decayCurveStoppingConfig": {"useElapsedTime": True}},
        )
    )
    assert [(p.id, p.type, p.parent, p.when) for p in spec.parameters] == [
        ("a", ParameterType.INTEGER, -1, ()),
        ("b", ParameterType.CATEGORICAL, 0, (2,)),
        ("c", ParameterType.INTEGER, 1, ("u",)),
    ]
    assert spec.metrics == (Metric("y", Goal.MAXIMIZE),)
    assert spec.algorithm is Algorithm.DEFAULT
    assert spec.stopping == DecayCurveStopping(use_elapsed=True)
    median = study(automatedStoppingConfig={"medianAutomatedStoppingConfig": {}})
    assert parse(median).stopping == MedianStopping()
    assert parse_ml_study(study(), "my-study").display_name == "my-study"
