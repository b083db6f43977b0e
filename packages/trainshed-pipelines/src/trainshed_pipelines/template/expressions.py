"""Expressions in compiled pipelines: conditions (`triggerPolicy.condition`) and selectors
(`parameterExpressionSelector`). Pure.

Both are written in the Common Expression Language (CEL). This module supports the part of CEL that the KFP
compiler emits and that the documentation of the format shows: literals, fields, indexes, operators and a few
functions. It does not support lists, maps, `in`, `?:`, `/`, `%`, methods and macros.

The rules are those of CEL, with one exception: arithmetic accepts an integer and a double together, because
JSON has only one type of number. Python never executes an expression's text.
"""

import json
import operator as operators
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NoReturn, cast

from msgspec import Struct, to_builtins

from trainshed.core.errors import closest, format_list
from trainshed_pipelines.runs.records import Artifact, Values
from trainshed_pipelines.template.structures import Json
from trainshed_pipelines.template.values import is_number, to_text

MAX_LENGTH: Final = 16 * 1024
"""Maximum number of characters of an expression."""
MAX_CALLS: Final = 1_000
"""Maximum number of operators, fields and functions of an expression. It limits the depth of the tree."""
CONDITION_VARIABLES: Final = ("inputs", "outputs")
"""The variables of conditions."""
_KINDS: Final[Mapping[type[object], str]] = {
    type(None): "null",
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
    list: "list",
    dict: "struct",
}
SELECTOR_VARIABLES: Final = tuple(sorted({f"{kind}_value" for kind in _KINDS.values()}))
"""The variables of selectors. `string_value` is always set: the text form of the value."""


class Call(Struct, frozen=True):
    """A function or an operator, and its operands: other calls or constants. The function `name` is a
    variable, and `.` an item of a list or an object. Only `&&` and `||` have any number of operands."""

    function: str
    operands: "tuple[Expression, ...]"


Expression = Call | str | float | bool | None


@lru_cache(256)
def parse(text: str) -> Expression:
    """Return the tree of an expression. Raises ValueError with the position of the first error. Results are
    cached, because each iteration of a loop evaluates the same expressions."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"The expression has {len(text)} characters. The limit is {MAX_LENGTH}.")
    try:
        return _Parser(text).nested("")
    except RecursionError:
        raise ValueError("The expression has too many nested levels.") from None


def references(expression: Expression) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of each variable and each input that a condition refers to. Kinds are
    `variable`, `input parameter` and `input artifact`."""
    nodes = [expression]
    while nodes:
        match nodes.pop():
            case Call("name", (str(name),)):
                yield "variable", name
            case Call(".", (Call(".", (Call("name", ("inputs",)) as start, kind)), str(key))):
                yield ("input artifact" if kind == "artifacts" else "input parameter"), key
                nodes.append(start)
            case Call(_, operands):
                nodes.extend(operands)
            case _:
                pass


def evaluate(expression: Expression, variables: Mapping[str, Json]) -> Json:
    """Return the value of an expression. Raise ValueError if it has none."""
    try:
        return _evaluate(expression, variables)
    except (RecursionError, ArithmeticError) as error:
        raise ValueError(f"The expression cannot be evaluated: {error}.") from None


def condition(expression: Expression, values: Values) -> bool:
    """Return whether a task with these inputs runs. Raise ValueError if the result is not a boolean."""
    inputs = {
        "parameter_values": values.parameters,
        "parameters": {key: _typed_value(value) for key, value in values.parameters.items()},
        "artifacts": {
            key: {"artifacts": [_runtime_artifact(artifact) for artifact in artifacts]}
            for key, artifacts in values.artifacts.items()
        },
    }
    return _boolean("The condition", evaluate(expression, {"inputs": inputs, "outputs": {}}))


def select(expression: Expression, value: Json) -> Json:
    """Return the part of a parameter's value that a selector specifies. Raise ValueError if it does not
    exist."""
    return evaluate(expression, {f"{_kind(value)}_value": value, "string_value": to_text(value)})


_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<double>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    | (?P<int>\d+)
    | (?P<string>"(?:[^"\\]|\\["'\\])*"|'(?:[^'\\]|\\["'\\])*')
    | (?P<sign>&&|\|\||==|!=|<=|>=|[-+*!<>.()\[\]])
    | (?P<name>[A-Za-z_]\w*)
    | (?P<end>\Z)
    | (?P<other>.))""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_LEVELS: Final = (("||",), ("&&",), ("==", "!=", "<=", ">=", "<", ">"), ("+", "-"), ("*",))
_CONSTANTS: Final = {"true": True, "false": False, "null": None}


class _Parser:
    """Reads one expression by recursive descent."""

    def __init__(self, text: str) -> None:
        #: The kind, the text and the position of each token.
        self._tokens = [
            (kind, match[kind], match.start(kind) + 1)
            for match in _TOKEN.finditer(text)
            if (kind := match.lastgroup)
        ]
        self._next = 0
        self._calls = 0

    def nested(self, end: str) -> Expression:
        """Read an expression, and the sign after it. `end`: "" = the end of the text."""
        expression = self._operation()
        if self._tokens[self._next][1] != end:
            self._fail_expecting(repr(end) if end else "an operator")
        self._next += 1
        return expression

    def _fail(self, position: int, problem: str) -> NoReturn:
        raise ValueError(f"The expression is invalid at character {position}: {problem}.")

    def _fail_expecting(self, expected: str) -> NoReturn:
        _, text, position = self._tokens[self._next]
        self._fail(position, f"expected {expected}, found {repr(text) if text else 'the end'}")

    def _call(self, function: str, *operands: Expression) -> Call:
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise ValueError(f"The expression has more than {MAX_CALLS} operators.")
        return Call(function, operands)

    def _accept(self, *signs: str) -> str:
        kind, text, _ = self._tokens[self._next]
        if kind != "sign" or text not in signs:
            return ""
        self._next += 1
        return text

    def _operation(self, level: int = 0) -> Expression:
        if level == len(_LEVELS):
            return self._unary()
        left = self._operation(level + 1)
        while sign := self._accept(*_LEVELS[level]):
            right = self._operation(level + 1)
            if level < 2 and isinstance(left, Call) and left.function == sign:
                left = self._call(sign, *left.operands, right)  # Long chains are not deep trees.
            else:
                left = self._call(sign, left, right)
        return left

    def _unary(self) -> Expression:
        if self._accept("!"):
            return self._call("!", self._unary())
        if self._accept("-"):
            return self._call("-", 0, self._unary())
        path = self._primary()
        while sign := self._accept(".", "["):
            if sign == "[":
                path = self._call(".", path, self.nested("]"))
                continue
            kind, text, _ = self._tokens[self._next]
            if kind != "name":
                self._fail_expecting("the name of a field")
            self._next += 1
            path = self._call(".", path, text)
        return path

    def _primary(self) -> Expression:
        if self._accept("("):
            return self.nested(")")
        kind, text, position = self._tokens[self._next]
        self._next += 1
        if kind == "int":
            # Python refuses to convert very long numbers.
            if len(text) > 19 or int(text) > 1 << 63:
                self._fail(position, "the integer has more than 64 bits")
            return int(text)
        if kind == "double":
            return float(text)
        if kind == "string":
            return re.sub(r"\\(.)", r"\1", text[1:-1])
        if kind != "name":
            self._next -= 1
            self._fail_expecting("a value")
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if not self._accept("("):
            return self._call("name", text)
        if text not in _FUNCTIONS:
            names = [name for name in _FUNCTIONS if name.isidentifier()]
            hint = closest(text, names) or f" Use one of {', '.join(names)}."
            self._fail(position, f"the function {text}() does not exist.{hint}".rstrip("."))
        return self._call(text, self.nested(")"))


def _typed_value(value: Json) -> dict[str, Json]:
    # All fields that can represent the value are set.
    numbers = {"int_value": int(value), "double_value": float(value)} if is_number(value) else {}
    return {"string_value": to_text(value), **numbers}


def _runtime_artifact(artifact: Artifact) -> dict[str, Json]:
    fields = {"name": artifact.name, "uri": artifact.uri, "type": to_builtins(artifact.type)}
    return {**fields, "metadata": artifact.metadata, "properties": artifact.metadata}


def _evaluate(expression: Expression, variables: Mapping[str, Json]) -> Json:
    if not isinstance(expression, Call):
        return expression
    function = expression.function
    if function == "name":
        return _item(variables, expression.operands[0])
    if function in ("&&", "||"):
        values = (_evaluate(operand, variables) for operand in expression.operands)
        booleans = (_boolean(f"An operand of {function}", value) for value in values)
        return any(booleans) if function == "||" else all(booleans)
    operands = [_evaluate(operand, variables) for operand in expression.operands]
    if function == ".":
        return _item(*operands)
    if function in ("==", "!="):
        left, right = operands
        # In Python, true equals 1.
        is_equal = isinstance(left, bool) is isinstance(right, bool) and left == right
        return is_equal is (function == "==")
    return _apply(function, operands)


def _boolean(source: str, value: Json) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{source} is a {_kind(value)}. It must be true or false.")
    return value


def _item(value: Json, key: Json) -> Json:
    if isinstance(value, list):
        value = dict(enumerate(cast("list[Json]", value)))
    if not isinstance(value, Mapping):
        raise ValueError(f"The item {key!r} needs a struct or a list, not a {_kind(value)}.")
    fields = cast("Mapping[str | int, Json]", value)
    if isinstance(key, str | int) and key in fields:
        return fields[key]
    names = [str(name) for name in fields]
    near = isinstance(key, str) and closest(key, names)
    raise ValueError(f"{key!r} does not exist.{near or f' Available: {format_list(names)}.'}")


def _apply(function: str, operands: list[Json]) -> Json:
    accepted, compute = _FUNCTIONS[function]
    kinds = [_kind(operand) for operand in operands]
    # Short texts are shown, because they often explain the error.
    shown = [f"{o[:40]!r}" if isinstance(o, str) else f"a {_kind(o)}" for o in operands]
    if len(set(kinds)) > 1 or kinds[0] not in accepted:
        raise ValueError(
            f"{function} does not accept {' and '.join(shown)}. "
            "Convert values with int(), double() or string()."
        )
    try:
        value = compute(*operands)
    except ValueError as error:
        raise ValueError(f"{function} does not accept {shown[0]}: {error}.") from None
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("An integer has more than 64 bits. Use double().")
    return value


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "struct")


_ORDERED = ("number", "string")
#: For each function, the kinds of values that it accepts, and its implementation. All operands of an operator
#: have the same kind.
_FUNCTIONS: Final[Mapping[str, tuple[tuple[str, ...], Callable[..., Json]]]] = {
    "!": (("bool",), operators.not_),
    "<": (_ORDERED, operators.lt),
    "<=": (_ORDERED, operators.le),
    ">": (_ORDERED, operators.gt),
    ">=": (_ORDERED, operators.ge),
    "+": (("number",), operators.add),
    "-": (("number",), operators.sub),
    "*": (("number",), operators.mul),
    "int": (_ORDERED, int),
    "double": (_ORDERED, float),
    "string": (("number", "string", "bool"), to_text),
    "size": (("string", "list", "struct"), len),
    "parseJson": (("string",), json.loads),
}
