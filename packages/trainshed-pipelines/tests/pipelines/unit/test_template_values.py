"""Values of parameters: types, conversions, and the parameters of a run."""

from typing import Any

import pytest

from tests.pipelines.unit.template_samples import DEEP, changed
from trainshed.core.errors import InvalidRequest
from trainshed_pipelines.template.reading import check_parameters, read_template
from trainshed_pipelines.template.structures import ParameterType
from trainshed_pipelines.template.values import as_input, coerce, parse_output, read_value, show, to_text

DOUBLE, INTEGER, STRING = ParameterType.DOUBLE, ParameterType.INTEGER, ParameterType.STRING
BOOLEAN, LIST, STRUCT = ParameterType.BOOLEAN, ParameterType.LIST, ParameterType.STRUCT


@pytest.mark.parametrize(
    ("value", "kind", "result"),
    [
        (3.0, INTEGER, 3),
        (2**53 - 1, INTEGER, 2**53 - 1),
        (3, DOUBLE, 3.0),
        ("3", STRING, "3"),
        (False, BOOLEAN, False),
        ([1.0, {"a": [2.0, 2.5, None]}], LIST, [1, {"a": [2, 2.5, None]}]),
        ({"a": 1.0}, STRUCT, {"a": 1}),
        ({"state": "FAILED"}, ParameterType.FINAL_STATUS, {"state": "FAILED"}),
    ],
)
def test_values_have_the_form_of_their_type(value: Any, kind: ParameterType, result: Any) -> None:
    assert repr(coerce(value, kind)) == repr(result)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (INTEGER, (3.5, 2**53, True, "3", float("inf"))),
        (DOUBLE, (True, float("nan"), 10**400, "0.5")),
        (STRING, (3, None)),
        (BOOLEAN, (1, "true")),
        (LIST, ("[1]", [float("nan")], {"a": 1}, DEEP)),
        (STRUCT, ([1], "{}")),
    ],
)
def test_values_of_other_types_are_refused(kind: ParameterType, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"does not match the type {kind.value}. Set "):
            coerce(value, kind)


@pytest.mark.parametrize(
    ("text", "kind", "result"),
    [
        (" a\n", STRING, " a\n"),
        (" 3\n", INTEGER, 3),
        ("3.0", INTEGER, 3),
        ("-1e3", DOUBLE, -1000.0),
        ("2", DOUBLE, 2.0),
        ("True\n", BOOLEAN, True),
        ("f", BOOLEAN, False),
        ('["a", 1.0]', LIST, ["a", 1]),
        ('{"a": {}}', STRUCT, {"a": {}}),
    ],
)
def test_outputs_are_read_from_text(text: str, kind: ParameterType, result: Any) -> None:
    assert repr(parse_output(text, kind)) == repr(result)
    if kind is not STRING:
        assert as_input(text, kind) == result


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (INTEGER, ("", "3.5", "three")),
        (DOUBLE, ("NaN",)),
        (BOOLEAN, ("yes",)),
        (LIST, ("{}", "[1", "[" * 100_000, "[" * 900 + "]" * 900)),
        (STRUCT, ("{'a': 1}",)),
    ],
)
def test_wrong_outputs_are_refused(kind: ParameterType, texts: tuple[str, ...]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=kind.value):
            parse_output(text, kind)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a b", "a b"),
        (None, ""),
        (True, "true"),
        (3, "3"),
        (3.0, "3"),
        (0.1, "0.1"),
        (1e-7, "0.0000001"),
        (1e21, "1000000000000000000000"),
        ([1, "é"], '[1, "é"]'),
        ({"a": None}, '{"a": null}'),
    ],
)
def test_values_become_texts_of_a_command_line(value: Any, text: str) -> None:
    assert to_text(value) == text
    assert as_input(value, STRING) == text


def test_deprecated_values_are_read() -> None:
    assert read_value({"intValue": "3"}) == 3
    assert read_value({"double_value": "0.5"}) == 0.5
    assert read_value({"stringValue": ""}) == ""
    for wrong in ({}, {"intValue": "x"}, {"stringValue": 1}, {"boolValue": True}, 3):
        with pytest.raises(ValueError, match="The value"):
            read_value(wrong)


def test_values_in_errors_are_short() -> None:
    assert show("x" * 1_000) == '"' + "x" * 56 + "..."
    assert show(10**5_000) == "of type int"


PARAMETERS = {
    "source": {"parameterType": "STRING"},
    "epochs": {"parameterType": "NUMBER_INTEGER", "defaultValue": 3.0, "isOptional": True},
    "lr": {"parameterType": "NUMBER_DOUBLE"},
    "mode": {"parameterType": "STRING", "literals": ["fast", "slow"], "isOptional": True},
}
PIPELINE = read_template(changed(("root/inputDefinitions/parameters", PARAMETERS)))


def test_parameters_have_their_types_and_defaults() -> None:
    parameters = {"source": "gs://b", "lr": 1, "mode": None}
    assert check_parameters(PIPELINE, parameters) == {"source": "gs://b", "epochs": 3, "lr": 1.0}
    parameters = {"source": "", "lr": 0.5, "mode": "slow", "epochs": 7.0}
    assert repr(check_parameters(PIPELINE, parameters)["epochs"]) == "7"


def test_all_wrong_parameters_are_reported() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_parameters(PIPELINE, {"sources": "x", "epochs": "7", "mode": "medium"}, "p")
    errors = {violation.field: violation.description for violation in caught.value.violations}
    assert [*errors] == ["p.sources", "p.source", "p.epochs", "p.lr", "p.mode"]
    assert "Did you mean source?" in errors["p.sources"]
    assert "parameter is missing" in errors["p.lr"]
    assert 'Set one of "fast" and "slow"' in errors["p.mode"]
