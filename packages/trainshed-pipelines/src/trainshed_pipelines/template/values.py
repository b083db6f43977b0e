"""Values of parameters: checks their types, and converts them from and to text, as the KFP launcher does.

A value that has passed through a `google.protobuf.Struct` contains only floats. The functions return integers
where the type or the value is one.
"""

import contextlib
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, cast

import msgspec

from trainshed.core.errors import format_list
from trainshed_pipelines.template.structures import Json, ParameterType

MAX_INTEGER: Final = 2**53 - 1
"""Maximum absolute value of a NUMBER_INTEGER. JSON numbers are exact only up to this limit."""
MAX_DEPTH: Final = 30
"""Maximum depth of nested lists and objects. Clients of gRPC read at most 100 nested messages, and an object
takes three."""
_MAX_NUMBER: Final = 1.7976931348623157e308
_MAX_SHOWN: Final = 60
"""Maximum length of a value in an error."""

#: For each type, the type of its values in Python, and an example.
_TYPES: Final[Mapping[ParameterType, tuple[Any, str]]] = {
    ParameterType.DOUBLE: ((), "a finite number such as 0.5"),
    ParameterType.INTEGER: ((), "an integer such as 3, of at most 2**53 - 1"),
    ParameterType.STRING: (str, 'a text such as "a"'),
    ParameterType.BOOLEAN: (bool, "true or false"),
    ParameterType.LIST: (list, f"a list such as [1, 2], with at most {MAX_DEPTH} levels"),
    ParameterType.STRUCT: (dict, f'an object such as {{"a": 1}}, with at most {MAX_DEPTH} levels'),
    ParameterType.FINAL_STATUS: (dict, "the final status of a task"),
}
#: The texts that Go's `strconv.ParseBool` accepts. The KFP launcher uses it.
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
#: The types of the fields of a deprecated `Value` message.
_VALUE_FIELDS: Final = {
    **dict.fromkeys(("intValue", "int_value"), ParameterType.INTEGER),
    **dict.fromkeys(("doubleValue", "double_value"), ParameterType.DOUBLE),
    **dict.fromkeys(("stringValue", "string_value"), ParameterType.STRING),
}


def coerce(value: Json, kind: ParameterType) -> Json:
    """Return the value in the exact form of its type: 3 for a NUMBER_INTEGER of 3.0. Raises ValueError for a
    value of another type, also for texts of numbers."""
    if is_number(value):
        if kind is ParameterType.DOUBLE:
            return float(value)
        if kind is ParameterType.INTEGER and abs(value) <= MAX_INTEGER and value == int(value):
            return int(value)
    elif isinstance(value, _TYPES[kind][0]):
        with contextlib.suppress(ValueError):
            return plain(value)
    raise ValueError(f"The value {show(value)} does not match the type {kind.value}. Set {_TYPES[kind][1]}.")


def check_literals(value: Json, literals: tuple[Json, ...]) -> None:
    """Raise ValueError if there are literals (the only permitted values), and the value is none of them."""
    if literals and value not in literals:
        permitted = format_list(show(literal) for literal in literals)
        raise ValueError(f"The value {show(value)} is not permitted. Set one of {permitted}.")


def as_input(value: Json, kind: ParameterType) -> Json:
    """Return the value as an input of a task.

    A STRING input converts all values to text. Inputs of other types read a text as the contents of an output
    file, because compiled pipelines contain constants such as "-1" for numbers. Raises ValueError for a value
    of another type.
    """
    if kind is ParameterType.STRING:
        return to_text(value)
    return parse_output(value, kind) if isinstance(value, str) else coerce(value, kind)


def parse_output(text: str, kind: ParameterType) -> Json:
    """Return the value of an output parameter from the contents of its file. Raises ValueError for a text
    that is not a value of the type."""
    value: Json = text
    if kind is ParameterType.BOOLEAN:
        value = _BOOLEANS.get(text.strip(), text)
    elif kind is not ParameterType.STRING:
        # A text that is not JSON matches none of these types, so `coerce` raises the error.
        with contextlib.suppress(ValueError, RecursionError):
            value = msgspec.json.decode(text)
    return coerce(value, kind)


def to_text(value: Json) -> str:
    """Return the value as a part of a command line: `a`, `3`, `0.5`, `true`, `[1, 2]`. A null is ""."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, float) and is_number(value):
        # As Go's `FormatFloat(value, 'f', -1, 64)`: never an exponent, and no fraction for an integer.
        return format(Decimal(repr(value)), "f").removesuffix(".0")
    return json.dumps(value, ensure_ascii=False)


def plain(value: Any, depth: int = 0) -> Json:
    """Return a JSON value with integers in place of exact floats without a fraction, also within lists and
    objects. Raises ValueError for infinite numbers, invalid Unicode, and more than MAX_DEPTH levels."""
    if isinstance(value, str):
        value.encode()  # Raises ValueError for half a character, which an escape in JSON can create.
    if value is None or isinstance(value, str | bool):
        return value
    if is_number(value):
        return int(value) if abs(value) <= MAX_INTEGER and value == int(value) else value
    if depth < MAX_DEPTH and isinstance(value, list):
        return [plain(item, depth + 1) for item in cast("list[Any]", value)]
    if depth < MAX_DEPTH and isinstance(value, dict):
        fields = cast("dict[str, Any]", value).items()
        return {plain(key): plain(item, depth + 1) for key, item in fields}
    raise ValueError(f"The value {show(value)} is not JSON.")


def read_value(message: Json) -> Json:
    """Return the content of a deprecated `Value` message: 3 for `{"intValue": "3"}`. Raises ValueError for
    other messages."""
    fields = cast("dict[str, Json]", message) if isinstance(message, dict) else {}
    for name, value in fields.items():
        if len(fields) == 1 and (kind := _VALUE_FIELDS.get(name)):
            # Proto JSON represents an `int64` as text.
            return parse_output(value, kind) if isinstance(value, str) else coerce(value, kind)
    raise ValueError(
        f"The value {show(message)} is not a constant. Set one of intValue, doubleValue and stringValue."
    )


def is_number(value: Any) -> bool:
    """Return whether the value is a finite JSON number."""
    return type(value) in (int, float) and abs(value) <= _MAX_NUMBER  # False for NaN.


def show(value: Json) -> str:
    """Return the value as JSON for an error, with at most _MAX_SHOWN characters."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, RecursionError):  # An integer with thousands of digits, or a deep object.
        text = f"of type {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
