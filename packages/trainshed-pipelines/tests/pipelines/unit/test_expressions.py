"""Conditions and selectors of compiled pipelines: the supported part of CEL."""

import re

import pytest

from trainshed_pipelines.runs.records import Artifact, Values
from trainshed_pipelines.template.expressions import (
    MAX_CALLS,
    MAX_LENGTH,
    condition,
    evaluate,
    parse,
    references,
    select,
)
from trainshed_pipelines.template.structures import ArtifactType, Json

MODEL = Artifact("m", ArtifactType("system.Model"), "gs://b/m", {"accuracy": 0.95, "epochs": 3})
PARAMETERS = {"coin": "heads", "count": 7, "rate": 0.5, "flag": True, "loop-item": "1"}
STATUS = {"status": {"state": "FAILED"}}
VALUES = Values(PARAMETERS | STATUS, {"model": (MODEL,), "none": ()})
VARIABLES = {"a": 7, "x": 2.5, "t": "text", "l": [1, "b"], "o": {"k": {"n": None}}, "yes": True}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("1", 1),
        ("1.5e3", 1500.0),
        ("-3", -3),
        ("true", True),
        (" null ", None),
        ('"it\'s"', "it's"),
        (r"'it\'s \\'", "it's \\"),
        ("'{{$.pipeline_root}} é'", "{{$.pipeline_root}} é"),
        ("1 + 2 * 3 - 4", 3),
        ("(1 + 2) * 3", 9),
        ("a * 0.5", 3.5),
        ("1 == 1.0", True),
        ("1 == true", False),
        ("null == null", True),
        ("o == o && o != o.k", True),
        ("'b' > 'a' && 2 <= 2.0 && 1 < 2", True),
        ("1 < 2 == true", True),
        ("!yes || a > 6", True),
        ("false && missing", False),
        ("true || missing", True),
        ("o.k.n", None),
        ("o['k']['n'] == null", True),
        ("l[a - 6]", "b"),
        ("int('42') + int(2.9) + int(-2.9)", 42),
        ("double('2.5') * double(2)", 5.0),
        ("string(2.5)", "2.5"),
        ("string(true)", "true"),
        ("size(t) + size(l) + size(o)", 7),
        ("""parseJson('{"a": [1, {"b": "c"}]}').a[1]["b"]""", "c"),
    ],
)
def test_expression_has_its_value_in_cel(text: str, result: Json) -> None:
    value = evaluate(parse(text), VARIABLES)
    assert (value, type(value)) == (result, type(result))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("missing", "'missing' does not exist. Available: a, x, t, l, o and yes."),
        ("o.kk", "'kk' does not exist. Did you mean k?"),
        ("o.k.n.z", "The item 'z' needs a struct or a list, not a null."),
        ("l[5]", "5 does not exist. Available: 0 and 1."),
        ("l['a']", "'a' does not exist."),
        ("o[l]", "[1, 'b'] does not exist."),
        ("missing && false", "'missing' does not exist."),
        ("a && yes", "An operand of && is a number. It must be true or false."),
        ("!a", "! does not accept a number."),
        ("t > 5", "> does not accept 'text' and a number. Convert values with int(),"),
        ("-t", "- does not accept a number and 'text'."),
        ("yes + 1", "+ does not accept a bool and a number."),
        ("9223372036854775807 + 1", "An integer has more than 64 bits. Use double()."),
        ("int('7.5')", "int does not accept '7.5': invalid literal"),
        ("int(yes)", "int does not accept a bool."),
        ("int(1e300)", "An integer has more than 64 bits."),
        ("int(double('inf'))", "The expression cannot be evaluated: cannot convert"),
        ("double('x')", "double does not accept 'x'"),
        ("size(1)", "size does not accept a number."),
        ("parseJson('{')", "parseJson does not accept '{': Expecting property name"),
    ],
)
def test_evaluation_error_names_the_cause(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        evaluate(parse(text), VARIABLES)


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 1, "expected a value, found the end"),
        ("(1", 3, "expected ')', found the end"),
        ("1 2", 3, "expected an operator, found '2'"),
        ("a ? 1 : 2", 3, "expected an operator, found '?'"),
        ("a in l", 3, "expected an operator, found 'in'"),
        ("a[1 2]", 5, "expected ']', found '2'"),
        ("'open", 1, 'expected a value, found "\'"'),
        (r"'C:\dir'", 1, 'expected a value, found "\'"'),
        ("a.", 3, "expected the name of a field, found the end"),
        ("{'a': 1}", 1, "expected a value, found '{'"),
        ("9" * 5000, 1, "the integer has more than 64 bits"),
        ("a.matches('x')", 10, "expected an operator, found '('"),
        ("parseJSON('1')", 1, "the function parseJSON() does not exist. Did you mean parseJson?"),
        ("eval('1')", 1, "the function eval() does not exist. Use one of int, double, string"),
    ],
)
def test_syntax_error_names_its_position(text: str, position: int, problem: str) -> None:
    start = f"The expression is invalid at character {position}: {problem}"
    with pytest.raises(ValueError, match="^" + re.escape(start)):
        parse(text)


def test_expressions_have_limits_and_long_chains_are_accepted() -> None:
    with pytest.raises(ValueError, match="has 16385 characters"):
        parse(" " * MAX_LENGTH + "1")
    assert parse("(" * 20 + "1" + ")" * 20) == 1
    assert evaluate(parse(" && ".join(["true"] * MAX_CALLS)), {}) is True
    for deep in ("(" * 9000, "-" * 9000 + "1", "1" + "+1" * 8000, "a" + ".a" * 8000, "!" * 9000):
        with pytest.raises(ValueError, match=r"too many nested levels|more than 1000 operators"):
            parse(deep)
    for text, value in (("x" + ".x" * (MAX_CALLS - 1), ""), ("parseJson(x)", "[" * 100_000)):
        with pytest.raises(ValueError, match="cannot be evaluated"):
            evaluate(parse(text), {"x": value})


@pytest.mark.parametrize(
    "text",
    [
        "inputs.parameter_values['coin'] == 'heads'",
        "!(inputs.parameter_values.coin == 'x') && inputs.parameter_values['flag'] == true",
        "int(inputs.parameter_values['loop-item']) >= -7",
        "inputs.parameter_values['rate'] < double(1)",
        "inputs.parameter_values.status.state == 'FAILED'",
        "inputs.parameters['count'].string_value == '7'",
        "inputs.parameters['count'].int_value * 2 == 14",
        "inputs.parameters['rate'].double_value == 0.5",
        "inputs.artifacts['model'].artifacts[0].metadata['accuracy'] * 100 > 90.0",
        "inputs.artifacts['model'].artifacts[0].properties['epochs'] == 3.0",
        "inputs.artifacts['model'].artifacts[0].type.schema_title == 'system.Model'",
        "size(inputs.artifacts['none'].artifacts) == 0",
    ],
)
def test_condition_reads_the_inputs_of_its_task(text: str) -> None:
    assert condition(parse(text), VALUES)
    assert not condition(parse(f"!({text})"), VALUES)


def test_condition_must_be_a_boolean_and_reports_missing_inputs() -> None:
    with pytest.raises(ValueError, match="The condition is a string"):
        condition(parse("inputs.parameter_values['coin']"), VALUES)
    with pytest.raises(ValueError, match="Did you mean coin"):
        condition(parse("inputs.parameter_values['coim'] == 1"), VALUES)


@pytest.mark.parametrize(
    ("text", "value", "result"),
    [
        ('parseJson(string_value)["a"]', {"a": {"c": [1, 2.5, None]}}, {"c": [1, 2.5, None]}),
        ('parseJson(string_value)["a"]', '{"a": 1}', 1),
        ("parseJson(string_value)[1]", [1, 2], 2),
        ("struct_value.a.b", {"a": {"b": 1}}, 1),
        ("list_value[0]", ["x"], "x"),
        ("number_value + 1", 4, 5),
        ("bool_value", False, False),
        ("string_value", True, "true"),
        ("string_value", None, ""),
        ("null_value", None, None),
    ],
)
def test_selector_returns_a_part_with_its_type(text: str, value: Json, result: Json) -> None:
    selected = select(parse(text), value)
    assert (selected, type(selected)) == (result, type(result))


@pytest.mark.parametrize("text", ["struct_value.a", "parseJson(string_value)[0]"])
def test_selector_of_a_missing_part_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="does not"):
        select(parse(text), "Hello")


def test_variables_and_inputs_of_an_expression_are_known_before_a_run() -> None:
    text = (
        "int(inputs.parameter_values['x']) > 1 && inputs.parameters.y.int_value != z || "
        "inputs.artifacts['m'].artifacts[0].uri == ''"
    )
    assert set(references(parse(text))) == {
        ("variable", "inputs"),
        ("variable", "z"),
        ("input parameter", "x"),
        ("input parameter", "y"),
        ("input artifact", "m"),
    }
